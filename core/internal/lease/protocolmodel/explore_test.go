package protocolmodel

import "fmt"

// result is what an exploration has found.
type result struct {
	states    int
	deepest   int
	violation violation
	trace     []action
}

type node struct {
	hash   uint64
	parent int32
}

// explore visits every state that can be reached, breadth first, up to the first violation. A state
// is known again by 64 bits of hash: among ten million states two are taken for one with a
// probability of 1 in 400,000.
func (m *model) explore(limit int) result {
	type open struct {
		state
		node int32
	}
	first := state{faults: m.faults}
	nodes := []node{{m.hash(&first), -1}}
	known := map[uint64]struct{}{nodes[0].hash: {}}
	level, next := []open{{first, 0}}, []open(nil)
	res := result{}
	for ; len(level) > 0 && res.violation == noViolation; res.deepest++ {
		for i := range level {
			m.actions(&level[i].state, func(a action) {
				s := level[i].state
				m.do(&s, a)
				h := m.hash(&s)
				if _, ok := known[h]; ok || res.violation != noViolation {
					return
				}
				known[h] = struct{}{}
				nodes = append(nodes, node{h, level[i].node})
				next = append(next, open{s, int32(len(nodes) - 1)})
				if s.broken != noViolation {
					res.violation = s.broken
					res.trace = m.trace(nodes)
				}
			})
			if len(nodes) > limit {
				panic(fmt.Sprint("protocolmodel: more states than ", limit))
			}
		}
		level, next = next, level[:0]
	}
	res.states = len(nodes)
	return res
}

// trace returns the actions that lead to the last node.
func (m *model) trace(nodes []node) (actions []action) {
	var path []uint64
	for i := int32(len(nodes) - 1); i > 0; i = nodes[i].parent {
		path = append(path, nodes[i].hash)
	}
	at := state{faults: m.faults}
	for i := len(path) - 1; i >= 0; i-- {
		found := false
		from := at
		m.actions(&from, func(a action) {
			s := from
			if m.do(&s, a); !found && m.hash(&s) == path[i] {
				found, at = true, s
				actions = append(actions, a)
			}
		})
	}
	return actions
}
