package zkstore

import (
	"bufio"
	"encoding/binary"
	"io"
	"net"
	"testing"
)

// oldServer returns the address of a server in front of another one that knows no containers.
func oldServer(t *testing.T, target string) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", target)
			if err != nil {
				_ = client.Close()
				continue
			}
			go func() {
				_, _ = io.Copy(client, server)
				_ = client.Close()
			}()
			go func() {
				defer func() { _ = server.Close() }()
				in := bufio.NewReader(client)
				for first := true; ; first = false {
					head := make([]byte, 4)
					if _, err := io.ReadFull(in, head); err != nil {
						return
					}
					body := make([]byte, binary.BigEndian.Uint32(head))
					if _, err := io.ReadFull(in, body); err != nil {
						return
					}
					const createContainer = 19
					if !first && len(body) >= 8 && binary.BigEndian.Uint32(body[4:]) == createContainer {
						reply := binary.BigEndian.AppendUint32(nil, 16)
						reply = append(reply, body[:4]...)
						reply = binary.BigEndian.AppendUint64(reply, 0)
						reply = binary.BigEndian.AppendUint32(reply, 0xfffffffa) // -6
						_, _ = client.Write(reply)
						continue
					}
					_, _ = server.Write(append(head, body...))
				}
			}()
		}
	}()
	return listener.Addr().String()
}
