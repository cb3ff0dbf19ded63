package redisstore

import "sync/atomic"

// sends counts the transmissions of a script call. It is an argument of the call: "0" in the first
// transmission, and "1" in later ones, which may be repeats of a call that has been carried out.
// The client marshals an argument for each transmission.
type sends struct{ n atomic.Int32 }

// sendsOf counts the first transmission as a repeat if an earlier call may have been carried out.
func sendsOf(repeated bool) *sends {
	s := new(sends)
	if repeated {
		s.n.Store(1)
	}
	return s
}

var firstSend, repeatedSend = []byte("0"), []byte("1")

// MarshalBinary implements encoding.BinaryMarshaler.
func (s *sends) MarshalBinary() ([]byte, error) {
	if s.n.Add(1) > 1 {
		return repeatedSend, nil
	}
	return firstSend, nil
}

func (s *sends) String() string { return "" } // in traces
