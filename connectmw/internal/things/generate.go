// Package things is a service to test interceptors with.
package things

//go:generate protoc --go_out=paths=source_relative:. --connect-go_out=paths=source_relative:. things.proto
