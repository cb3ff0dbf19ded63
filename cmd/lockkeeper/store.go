package main

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/lockkeeper/lockkeeper/core/pgstore"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
)

// patience is the store's timeout, for an operator who may be far away from it.
const patience = 2 * time.Second

// openStore opens the store of the options. It sends nothing yet.
func (c *call) openStore() (end func(), err error) {
	address := c.url
	if address == "" {
		address = os.Getenv(environment)
	}
	if address == "" {
		return nil, misused("say -store or set %s", environment)
	}
	secret, err := readSecret(c.storeSecretFile)
	if err != nil {
		return nil, fmt.Errorf("-store-secret-file: %w", err)
	}
	if c.timeout == 0 && c.name != "doctor" {
		c.timeout = patience
	}
	scheme, _, _ := strings.Cut(address, ":")
	if scheme == "postgres" || scheme == "postgresql" {
		return c.openPostgres(address, secret)
	}
	return c.openRedis(address, secret)
}

func (c *call) openPostgres(address string, secret []byte) (func(), error) {
	opts := []pgstore.Option{pgstore.WithSchema(c.schema), pgstore.WithSecret(secret), pgstore.WithoutDenialCache()}
	if c.timeout > 0 {
		opts = append(opts, pgstore.WithTimeout(c.timeout))
	}
	st, err := pgstore.New(address, opts...)
	if err != nil {
		return nil, misused("-store: %v", err) // pgx hides the password
	}
	c.store = st
	return func() { _ = st.Close() }, nil
}

func (c *call) openRedis(address string, secret []byte) (func(), error) {
	logging.Disable() // of go-redis, whose errors this command reports itself
	client, err := redisClient(address, c.timeout)
	if err != nil {
		return nil, err
	}
	opts := []redisstore.Option{
		redisstore.WithPrefix(c.prefix), redisstore.WithSecret(secret), redisstore.WithoutDenialCache(),
	}
	if c.timeout > 0 {
		opts = append(opts, redisstore.WithTimeout(c.timeout))
	}
	if c.name != "doctor" { // which reports what others look at all the same
		opts = append(opts, redisstore.AllowEviction())
	}
	if c.acks > 0 {
		opts = append(opts, redisstore.WithReplicaAcks(c.acks, 100*time.Millisecond))
	}
	st, err := redisstore.New(client, opts...)
	if err != nil {
		_ = client.Close()
		return nil, usageError{err.Error()}
	}
	c.store = st
	return func() {
		_ = st.Close()
		_ = client.Close()
	}, nil
}

// errScheme has nothing of the URL, of which any part may be a password.
var errScheme = misused("-store: a URL begins with redis:, rediss:, redis+cluster:, redis+sentinel: or postgres:")

// noNotices has clients not ask for notices of maintenance: a command ends before it is moved.
var noNotices = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}

// redisClient returns a client of a URL: redis or rediss, with +cluster or +sentinel behind it.
func redisClient(address string, timeout time.Duration) (redis.UniversalClient, error) {
	scheme, rest, _ := strings.Cut(address, ":")
	scheme, kind, _ := strings.Cut(scheme, "+")
	if scheme != "redis" && scheme != "rediss" {
		return nil, errScheme
	}
	switch plain := scheme + ":" + rest; kind {
	case "":
		o, err := redis.ParseURL(plain)
		if err != nil {
			return nil, urlError(err)
		}
		o.ContextTimeoutEnabled, o.ReadTimeout = true, longer(o.ReadTimeout, timeout)
		o.MaintNotificationsConfig = noNotices
		return redis.NewClient(o), nil
	case "cluster":
		o, err := redis.ParseClusterURL(plain)
		if err != nil {
			return nil, urlError(err)
		}
		o.ContextTimeoutEnabled, o.ReadTimeout = true, longer(o.ReadTimeout, timeout)
		o.MaintNotificationsConfig = noNotices
		return redis.NewClusterClient(o), nil
	case "sentinel":
		o, err := redis.ParseFailoverURL(plain)
		if err != nil {
			return nil, urlError(err)
		}
		o.ContextTimeoutEnabled, o.ReadTimeout = true, longer(o.ReadTimeout, timeout)
		return redis.NewFailoverClient(o), nil
	}
	return nil, errScheme
}

// longer returns a timeout of the client that is longer than the store's: 0 for the client's default
// of 3 s.
func longer(set, timeout time.Duration) time.Duration {
	if set == 0 && timeout >= 3*time.Second {
		return timeout + time.Second
	}
	return set
}

// urlError returns the error of a URL that cannot be read, without the URL, which may have a password.
func urlError(err error) error {
	var parsing *url.Error
	if errors.As(err, &parsing) {
		err = errors.New("it cannot be read; characters of a password may have to be escaped, such as %40 for @")
	}
	return misused("-store: %v", err)
}
