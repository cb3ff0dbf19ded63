module github.com/lockkeeper/lockkeeper/core/rules

go 1.26.0

require (
	github.com/goccy/go-yaml v1.19.2
	github.com/lockkeeper/lockkeeper v0.2.0
	github.com/redis/go-redis/v9 v9.23.0
	go.opentelemetry.io/otel/metric v1.40.0
)

require (
	github.com/alicebob/miniredis/v2 v2.35.0 // indirect
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/go-logr/logr v1.4.3 // indirect
	github.com/go-logr/stdr v1.2.2 // indirect
	github.com/yuin/gopher-lua v1.1.1 // indirect
	go.opentelemetry.io/auto/sdk v1.2.1 // indirect
	go.opentelemetry.io/otel v1.40.0 // indirect
	go.opentelemetry.io/otel/trace v1.40.0 // indirect
	go.uber.org/atomic v1.12.0 // indirect
	golang.org/x/sys v0.48.0 // indirect
)

replace github.com/lockkeeper/lockkeeper => ../../
