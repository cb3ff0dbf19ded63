package redisstore

import "sync/atomic"

// sends is an argument of a script: "1" if the call may have been carried out before, since it was
// sent before, and "0" otherwise. The client marshals an argument each time that it sends it.
type sends struct{ n atomic.Int32 }

var firstSend, repeatedSend = []byte("0"), []byte("1")

// MarshalBinary implements encoding.BinaryMarshaler.
func (s *sends) MarshalBinary() ([]byte, error) {
	if s.n.Add(1) > 1 {
		return repeatedSend, nil
	}
	return firstSend, nil
}

func (s *sends) String() string { return "" } // in traces
