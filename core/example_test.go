package core_test

import (
	"fmt"

	"github.com/lockkeeper/lockkeeper/core"
)

// Log the version at the start of a service: the scopes of its metrics and spans have the same one.
func Example() {
	fmt.Println("starting with Lockkeeper", core.Version)
	// Output: starting with Lockkeeper 0.2.0
}
