package idempotency

import (
	"context"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// recorder is the grpc.ServerTransportStream of a handler, which remembers what metadata it is
// given.
type recorder struct {
	grpc.ServerTransportStream // nil for a call that is not a server's

	mu              sync.Mutex
	header, trailer metadata.MD
}

// capture returns a context whose metadata is recorded.
func capture(ctx context.Context) (context.Context, *recorder) {
	stream := grpc.ServerTransportStreamFromContext(ctx)
	r := &recorder{ServerTransportStream: stream}
	if stream == nil {
		return ctx, r
	}
	return grpc.NewContextWithServerTransportStream(ctx, r), r
}

func (r *recorder) SetHeader(md metadata.MD) error {
	err := r.ServerTransportStream.SetHeader(md)
	if err == nil {
		r.record(&r.header, md)
	}
	return err
}

func (r *recorder) SendHeader(md metadata.MD) error {
	err := r.ServerTransportStream.SendHeader(md)
	if err == nil {
		r.record(&r.header, md)
	}
	return err
}

func (r *recorder) SetTrailer(md metadata.MD) error {
	err := r.ServerTransportStream.SetTrailer(md)
	if err == nil {
		r.record(&r.trailer, md)
	}
	return err
}

func (r *recorder) record(all *metadata.MD, md metadata.MD) {
	r.mu.Lock()
	defer r.mu.Unlock()
	*all = metadata.Join(*all, md)
}

// recorded returns header and trailer, but for what belongs to one transmission, one client, or
// gRPC.
func (r *recorder) recorded() (header, trailer metadata.MD) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return lasting(r.header), lasting(r.trailer)
}

func lasting(md metadata.MD) metadata.MD {
	kept := metadata.MD{}
	for name, values := range md {
		switch {
		case strings.HasPrefix(name, "grpc-"), strings.HasPrefix(name, ":"):
		case name == "date", name == "server", name == "set-cookie", name == replayedMetadata, name == statusMetadata:
		default:
			kept[name] = values
		}
	}
	return kept
}
