//go:build !unix

package pgstore

import "net"

func isQuiet(net.Conn) bool { return true }
