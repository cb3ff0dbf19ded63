// Package shop is the service of the example.
package shop

//go:generate protoc --go_out=paths=source_relative:. --go-grpc_out=paths=source_relative:. shop.proto
