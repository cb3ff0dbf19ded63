// A program outside of the repository: a gRPC server that answers one call a minute.
package main

import (
	"context"
	"log"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/grpcmw"
	"github.com/lockkeeper/lockkeeper/grpcmw/ratelimit"
)

func main() {
	limiter, err := tokenbucket.New(memstore.New(), "health", tokenbucket.PerMinute(1))
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer(grpcmw.ServerOptions(ratelimit.New(limiter, grpcmw.ByPeer()))...)
	grpc_health_v1.RegisterHealthServer(server, health.NewServer())
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	go func() { _ = server.Serve(listener) }()
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	client := grpc_health_v1.NewHealthClient(conn)
	for _, want := range []codes.Code{codes.OK, codes.ResourceExhausted} {
		if _, err := client.Check(context.Background(), &grpc_health_v1.HealthCheckRequest{}); status.Code(err) != want {
			log.Fatalf("%v, want %v", err, want)
		}
	}
}
