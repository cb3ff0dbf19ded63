package main_test

import (
	"os"
	"testing"

	"github.com/lockkeeper/lockkeeper/examples/internal/shoptest"
)

func TestMain(m *testing.M) { os.Exit(shoptest.Main(m)) }

func TestShop(t *testing.T) { shoptest.Run(t) }
