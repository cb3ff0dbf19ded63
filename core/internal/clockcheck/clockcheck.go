// Package clockcheck finds servers whose clocks differ from that of this machine.
package clockcheck

import (
	"fmt"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// most is the largest difference without a finding.
const most = time.Second

// Finding returns a finding if the server's clock differs by more than a second from this
// machine's. The server's clock showed a time between sending the request and receiving the reply.
func Finding(server string, shown, sent, received time.Time) []store.Finding {
	by, way := sent.Sub(shown), "behind"
	if ahead := shown.Sub(received); ahead > by {
		by, way = ahead, "ahead of"
	}
	if by <= most {
		return nil
	}
	return []store.Finding{{
		Found: fmt.Sprintf("the clock of %s is %v %s this machine's", server, by.Round(100*time.Millisecond), way),
		Weakens: "once it is set right, or another server takes over, leases may end early or late by as much, " +
			"and the fences of a server that has lost its state may be lower than earlier ones",
		Remedy: "Synchronize the clocks of all servers, with small steps only",
	}}
}
