package zktest

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"time"
)

// Session is a session at a server, for what no client does.
type Session struct {
	ID       int64
	Password []byte
	Length   time.Duration // as negotiated

	conn net.Conn
}

// replyWithin is how long a server may take for one reply. One that starts may lose a request.
const replyWithin = time.Second

// ErrEnded is the error of Resume for a session that has ended.
var ErrEnded = errors.New("the session has ended")

// Connect begins a session of a length.
func Connect(address string, length time.Duration) (*Session, error) {
	return connect(address, &Session{Password: make([]byte, 16), Length: length})
}

// Resume continues the session of another client, which loses its connection by this: its server
// then takes requests from here only.
func Resume(address string, id int64, password []byte) (*Session, error) {
	return connect(address, &Session{ID: id, Password: password, Length: time.Minute})
}

func connect(address string, s *Session) (*Session, error) {
	conn, err := net.DialTimeout("tcp", address, replyWithin)
	if err != nil {
		return nil, err
	}
	s.conn = conn
	_ = conn.SetDeadline(time.Now().Add(replyWithin))
	request := make([]byte, 4+8) // the version of the protocol, and the last change that the client saw
	request = binary.BigEndian.AppendUint32(request, uint32(s.Length.Milliseconds()))
	request = binary.BigEndian.AppendUint64(request, uint64(s.ID))
	request = binary.BigEndian.AppendUint32(request, uint32(len(s.Password)))
	request = append(request, s.Password...)
	err = s.send(request)
	var reply []byte
	if err == nil {
		reply, err = readFrame(bufio.NewReader(conn))
	}
	if err == nil && len(reply) < 4+4+4+8+4 {
		err = errors.New("a short reply")
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	s.Length = time.Duration(binary.BigEndian.Uint32(reply[8:])) * time.Millisecond
	s.ID = int64(binary.BigEndian.Uint64(reply[12:]))
	s.Password = append([]byte(nil), reply[24:min(len(reply), 40)]...)
	if s.ID == 0 {
		_ = conn.Close()
		return nil, ErrEnded
	}
	return s, nil
}

// End ends the session at the server, with its ephemeral nodes, as its expiry would.
func (s *Session) End() error {
	defer func() { _ = s.conn.Close() }()
	if err := s.send(binary.BigEndian.AppendUint32([]byte{0, 0, 0, 1}, closeSession)); err != nil {
		return err
	}
	_, err := readFrame(bufio.NewReader(s.conn)) // none comes if the other client has resumed the session
	return err
}

func (s *Session) send(body []byte) error {
	_, err := s.conn.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...))
	return err
}

// readFrame reads a length and what follows it, and returns all of it.
func readFrame(in *bufio.Reader) ([]byte, error) {
	head := make([]byte, 4)
	if _, err := io.ReadFull(in, head); err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(head)
	if size > 64<<20 {
		return nil, errors.New("this is no frame of ZooKeeper")
	}
	raw := make([]byte, 4+int(size))
	copy(raw, head)
	_, err := io.ReadFull(in, raw[4:])
	return raw, err
}
