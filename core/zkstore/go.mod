module github.com/lockkeeper/lockkeeper/core/zkstore

go 1.26.0

require github.com/lockkeeper/lockkeeper v0.2.0

replace github.com/lockkeeper/lockkeeper => ../../

require (
	github.com/go-zookeeper/zk v1.0.4
	go.opentelemetry.io/otel/metric v1.40.0
)

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/go-logr/logr v1.4.3 // indirect
	github.com/go-logr/stdr v1.2.2 // indirect
	go.opentelemetry.io/auto/sdk v1.2.1 // indirect
	go.opentelemetry.io/otel v1.40.0 // indirect
	go.opentelemetry.io/otel/trace v1.40.0 // indirect
)
