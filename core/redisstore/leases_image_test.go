package redisstore_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// image is what a server had. A server that has it again is one that a failover has made the master,
// and that had not received the writes since.
type image map[string]imaged

type imaged struct {
	value string
	ttl   time.Duration
}

func imageOf(t testing.TB, server *redis.Client) image {
	t.Helper()
	all := make(image)
	for _, key := range keysOf(t, server, "*") {
		value, err := server.Dump(ctx(), key).Result()
		must(t, err)
		all[key] = imaged{value, max(server.PTTL(ctx(), key).Val(), 0)}
	}
	return all
}

// restore returns a server to the image, in one step.
func (all image) restore(t testing.TB, server *redis.Client) {
	t.Helper()
	_, err := server.TxPipelined(ctx(), func(p redis.Pipeliner) error {
		p.FlushAll(ctx())
		for key, k := range all {
			p.Restore(ctx(), key, k.ttl, k.value)
		}
		return nil
	})
	must(t, err)
}
