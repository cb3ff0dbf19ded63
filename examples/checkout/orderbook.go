package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/delay"
	"github.com/lockkeeper/lockkeeper/core/guard"
)

// status is the status of a placed order. An unpaid order changes once, to one of the others.
type status string

const (
	unpaid    status = "unpaid"
	paid      status = "paid"
	cancelled status = "cancelled"
)

// placed is an order that was placed without a payment.
type placed struct {
	order
	Status   status `json:"status"`
	PlacedAt int64  `json:"placed_at"`    // in Unix milliseconds by the instance's clock: it sorts lists
	Left     int64  `json:"left_seconds"` // for the payment; by the timer, and not kept
}

// expiry is the payload of an order's timer.
type expiry struct {
	Owner, ID, SKU string
	Quantity       int64
}

// placing is a request to place an order, or to pay it.
type placing struct {
	placed
	owner   string        // quoted, so that a database and JSON keep every byte of it
	within  time.Duration // the time for its payment
	attempt *guard.Attempt
	answer  guard.Result // of the attempt, which is:
	code    int
	header  http.Header
	body    []byte
}

// errSoldOut means that there is less in stock than was ordered. Nothing has changed.
var errSoldOut = errors.New("sold out")

// maxOrders is how many orders a list has, the latest ones.
const maxOrders = 20

// An orderBook keeps placed orders. It changes the stock as well: callers of place and cancel hold
// the lock of the article.
type orderBook interface {
	// place adds an unpaid order, takes its stock and puts its timer. A repeat changes nothing. It
	// returns the status that the order has: cancelled if its time was over before.
	place(ctx context.Context, p placing) (status, error)
	// pay makes an order paid if it is unpaid, and then cancels its timer. It returns the status that
	// the order has.
	pay(ctx context.Context, p placing) (status, error)
	// cancel makes an order cancelled if it is unpaid, and then gives its stock back. It returns the
	// status that the order has, and "" if there is none, and will be none.
	cancel(ctx context.Context, e expiry) (status, error)
	find(ctx context.Context, owner, id string) (placed, bool, error)
	list(ctx context.Context, owner string) ([]placed, error)
}

// apartBook is an order book whose timers are in another store than its orders. The timer is put
// first: an instance that is killed between the two leaves a timer without an order, and no order
// without a timer.
type apartBook struct {
	orderStates
	timers *delay.Queue
}

// orderStates are the orders of an apartBook. Each method is one atomic step.
type orderStates interface {
	// add adds an unpaid order, and takes its stock, unless the order has a status.
	add(ctx context.Context, p placing) (status, error)
	// settle changes the status of an order that is unpaid, and gives back what it had taken if that is
	// to be cancelled. An order that does not exist can be cancelled: it is not added any more.
	settle(ctx context.Context, e expiry, to status, chargeID string) (status, error)
	find(ctx context.Context, owner, id string) (placed, bool, error)
	list(ctx context.Context, owner string) ([]placed, error)
}

func (b apartBook) place(ctx context.Context, p placing) (status, error) {
	payload, err := json.Marshal(p.expiry())
	if err != nil {
		return "", err
	}
	if _, err := b.timers.Put(ctx, p.ID, payload, p.within, delay.KeepFirst()); err != nil {
		return "", err
	}
	s, err := b.add(ctx, p)
	if errors.Is(err, errSoldOut) {
		_, _ = b.timers.Cancel(ctx, p.ID) // or it finds no order
	}
	return s, err
}

func (b apartBook) pay(ctx context.Context, p placing) (status, error) {
	s, err := b.settle(ctx, p.expiry(), paid, p.ChargeID)
	if s == paid {
		_, _ = b.timers.Cancel(ctx, p.ID) // or it finds that the order is paid
	}
	return s, err
}

func (b apartBook) cancel(ctx context.Context, e expiry) (status, error) {
	return b.settle(ctx, e, cancelled, "")
}

func (p *placing) expiry() expiry { return expiry{p.owner, p.ID, p.SKU, p.Quantity} }

// memoryOrders are gone with the process.
type memoryOrders struct {
	shelf  *memoryShelf // whose mutex is that of the orders
	orders map[string]map[string]*placed
}

func newMemoryOrders(shelf *memoryShelf) memoryOrders {
	return memoryOrders{shelf, map[string]map[string]*placed{}}
}

func (m memoryOrders) add(_ context.Context, p placing) (status, error) {
	m.shelf.mu.Lock()
	defer m.shelf.mu.Unlock()
	if o, ok := m.orders[p.owner][p.ID]; ok {
		return o.Status, nil
	}
	if m.shelf.left[p.SKU] < p.Quantity {
		return "", errSoldOut
	}
	m.shelf.left[p.SKU] -= p.Quantity
	m.put(p.owner, p.placed)
	return unpaid, nil
}

func (m memoryOrders) put(owner string, o placed) {
	if m.orders[owner] == nil {
		m.orders[owner] = map[string]*placed{}
	}
	o.Left = 0
	m.orders[owner][o.ID] = &o
}

func (m memoryOrders) settle(_ context.Context, e expiry, to status, chargeID string) (status, error) {
	m.shelf.mu.Lock()
	defer m.shelf.mu.Unlock()
	o, ok := m.orders[e.Owner][e.ID]
	switch {
	case !ok && to == cancelled:
		m.put(e.Owner, placed{order: order{ID: e.ID}, Status: cancelled})
		return "", nil
	case !ok:
		return "", nil
	case o.Status == unpaid:
		o.Status, o.ChargeID = to, chargeID
		if to == cancelled {
			m.shelf.left[e.SKU] += e.Quantity
		}
	}
	return o.Status, nil
}

func (m memoryOrders) find(_ context.Context, owner, id string) (placed, bool, error) {
	m.shelf.mu.Lock()
	defer m.shelf.mu.Unlock()
	o, ok := m.orders[owner][id]
	if !ok || o.SKU == "" {
		return placed{}, false, nil
	}
	return *o, true, nil
}

func (m memoryOrders) list(_ context.Context, owner string) (all []placed, err error) {
	m.shelf.mu.Lock()
	defer m.shelf.mu.Unlock()
	for _, o := range m.orders[owner] {
		if o.SKU != "" {
			all = append(all, *o)
		}
	}
	return latest(all), nil
}

// latest returns the latest orders, the last one first.
func latest(all []placed) []placed {
	slices.SortFunc(all, func(a, b placed) int { return cmp.Or(cmp.Compare(b.PlacedAt, a.PlacedAt), cmp.Compare(a.ID, b.ID)) })
	return all[:min(len(all), maxOrders)]
}

// redisOrders are shared by all instances. The orders of a customer are a hash, with up to three
// fields for each: the text of the order, its status, and its charge. The stock is changed by a difference, which a process
// that was paused may also do later: it overwrites nothing, and needs no fence.
type redisOrders struct{ client *redis.Client }

// KEYS: the customer's orders, the stock. ARGV: ID, quantity, the order's text, kept for (ms).
// Returns the status that the order has, or "sold out".
var addOrder = redis.NewScript(`
	local status = redis.call('HGET', KEYS[1], ARGV[1] .. ':status')
	if status then return status end
	local left = tonumber(redis.call('GET', KEYS[2]) or '0')
	if left < tonumber(ARGV[2]) then return 'sold out' end
	redis.call('DECRBY', KEYS[2], ARGV[2])
	redis.call('HSET', KEYS[1], ARGV[1], ARGV[3], ARGV[1] .. ':status', 'unpaid')
	redis.call('PEXPIRE', KEYS[1], ARGV[4])
	return 'unpaid'`)

// KEYS: the customer's orders, the stock. ARGV: ID, quantity, the new status, the charge's ID, kept
// for (ms). Returns the status, or "" without an order.
var settleOrder = redis.NewScript(`
	local status = redis.call('HGET', KEYS[1], ARGV[1] .. ':status')
	if status == 'unpaid' then
		redis.call('HSET', KEYS[1], ARGV[1] .. ':status', ARGV[3], ARGV[1] .. ':charge', ARGV[4])
		if ARGV[3] == 'cancelled' then redis.call('INCRBY', KEYS[2], ARGV[2]) end
		return ARGV[3]
	end
	if not status and ARGV[3] == 'cancelled' then
		redis.call('HSET', KEYS[1], ARGV[1] .. ':status', 'cancelled')
		redis.call('PEXPIRE', KEYS[1], ARGV[5])
	end
	return redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 and status or ''`)

func (r redisOrders) add(ctx context.Context, p placing) (status, error) {
	ctx, cancel := context.WithTimeout(ctx, redisTimeout)
	defer cancel()
	text, err := json.Marshal(p.placed)
	if err != nil {
		return "", err
	}
	s, err := addOrder.Run(ctx, r.client, []string{placedName(p.owner), stockName(p.SKU)},
		p.ID, p.Quantity, text, keptFor.Milliseconds()).Text()
	if s == "sold out" {
		return "", errSoldOut
	}
	return status(s), err
}

func (r redisOrders) settle(ctx context.Context, e expiry, to status, chargeID string) (status, error) {
	ctx, cancel := context.WithTimeout(ctx, redisTimeout)
	defer cancel()
	s, err := settleOrder.Run(ctx, r.client, []string{placedName(e.Owner), stockName(e.SKU)},
		e.ID, e.Quantity, string(to), chargeID, keptFor.Milliseconds()).Text()
	return status(s), err
}

func (r redisOrders) find(ctx context.Context, owner, id string) (o placed, found bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, redisTimeout)
	defer cancel()
	fields, err := r.client.HMGet(ctx, placedName(owner), id, id+":status", id+":charge").Result()
	if err != nil {
		return o, false, err
	}
	text, ok := fields[0].(string)
	s, known := fields[1].(string)
	if !ok || !known {
		return o, false, nil
	}
	chargeID, _ := fields[2].(string)
	o, err = readPlaced(text, status(s), chargeID)
	return o, err == nil, err
}

func (r redisOrders) list(ctx context.Context, owner string) (all []placed, err error) {
	ctx, cancel := context.WithTimeout(ctx, redisTimeout)
	defer cancel()
	fields, err := r.client.HGetAll(ctx, placedName(owner)).Result()
	if err != nil {
		return nil, err
	}
	for id, text := range fields {
		s, ok := fields[id+":status"]
		if !ok {
			continue // a status, or a charge
		}
		o, err := readPlaced(text, status(s), fields[id+":charge"])
		if err != nil {
			return nil, err
		}
		all = append(all, o)
	}
	return latest(all), nil
}

// readPlaced reads an order that was kept with its status beside it.
func readPlaced(text string, s status, chargeID string) (o placed, err error) {
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return o, fmt.Errorf("a placed order: %w", err)
	}
	o.Status, o.ChargeID, o.Left = s, chargeID, 0
	return o, nil
}

func placedName(owner string) string { return redisPrefix + "placed:" + owner }
