package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/fence"
	"github.com/lockkeeper/lockkeeper/core/fence/redisfence"
	"github.com/lockkeeper/lockkeeper/core/lock"
)

const (
	// thinkTime is what the shop needs between reading the stock and writing it: time for another
	// to read what is no longer true.
	thinkTime = 2 * time.Millisecond
	maxStock  = 1_000_000
	// countTime is how long it takes to count an article.
	countTime = 500 * time.Millisecond
	// maxStockBody is more than any request about the stock has.
	maxStockBody = 1 << 10
)

// stock is the answer to a customer.
type stock struct {
	SKU  string `json:"sku"`
	Left int64  `json:"left"`
}

// sells is middleware: there is no stock, and no lock, of what the shop does not sell.
func (s *shop) sells(c *gin.Context) {
	if _, ok := prices[c.Param("sku")]; !ok {
		problem(c, http.StatusNotFound, "There is no such article.")
	}
}

// stock shows how many of an article are left.
func (s *shop) stock(c *gin.Context) {
	sku := c.Param("sku")
	left, err := s.shelf.count(c.Request.Context(), sku)
	if err != nil {
		stockUnavailable(c)
		return
	}
	c.Header("Cache-Control", "no-store")
	c.JSON(http.StatusOK, stock{sku, left})
}

// restock sets how many there are.
func (s *shop) restock(c *gin.Context) {
	n, ok := readQuantity(c, 0, maxStock)
	if !ok {
		return
	}
	sku := c.Param("sku")
	if s.put(c, sku, n) {
		c.JSON(http.StatusOK, stock{sku, n})
	}
}

// take sells some of an article. It may read, compute and write without regard to other requests;
// the exclusive middleware ensures that.
func (s *shop) take(c *gin.Context) {
	n, ok := readQuantity(c, 1, maxQuantity)
	if !ok {
		return
	}
	ctx, sku := c.Request.Context(), c.Param("sku")
	left, err := s.shelf.count(ctx, sku)
	switch {
	case err != nil:
		stockUnavailable(c)
		return
	case left < n:
		problem(c, http.StatusConflict, fmt.Sprintf("Sold out: there are %d left.", left))
		return
	}
	select {
	case <-time.After(thinkTime):
	case <-ctx.Done(): // the customer has left, or the lock is lost
		stockUnavailable(c)
		return
	}
	if s.put(c, sku, left-n) {
		c.JSON(http.StatusOK, stock{sku, left - n})
	}
}

// takeStock counts an article, and shows how many are left. No request changes that during the count;
// the exclusive middleware ensures that.
func (s *shop) takeStock(c *gin.Context) {
	select {
	case <-time.After(countTime):
		s.stock(c)
	case <-c.Request.Context().Done(): // the clerk has left, or the lock is lost
		stockUnavailable(c)
	}
}

// put writes the stock, or answers why it could not.
func (s *shop) put(c *gin.Context, sku string, left int64) bool {
	ctx := c.Request.Context()
	// The fence is for a process that was paused for so long that another one got its lock: it must
	// not overwrite what the other has written.
	var token fence.Token
	if lease, ok := lock.FromContext(ctx); ok {
		token = lease.Fence()
	}
	err := s.shelf.put(ctx, sku, left, token)
	switch {
	case errors.Is(err, fence.ErrStale):
		stockUnavailable(c)
	case err != nil:
		problem(c, http.StatusServiceUnavailable, "It is unknown whether that changed the stock. Check it before you try again.")
	}
	return err == nil
}

// stockUnavailable is the answer to a request that had no effect.
func stockUnavailable(c *gin.Context) {
	c.Header("Retry-After", "1")
	problem(c, http.StatusServiceUnavailable, "The stock cannot be reached now. Nothing has changed; try again.")
}

// readQuantity reads a body that has only a quantity, or answers 400.
func readQuantity(c *gin.Context, least, most int64) (int64, bool) {
	var req struct {
		Quantity *int64 `json:"quantity"`
	}
	err := readJSON(http.MaxBytesReader(c.Writer, c.Request.Body, maxStockBody), &req)
	if err != nil || req.Quantity == nil || *req.Quantity < least || *req.Quantity > most {
		problem(c, http.StatusBadRequest, fmt.Sprintf(`The body must be {"quantity": %d}, or another number up to %d.`, least, most))
		return 0, false
	}
	return *req.Quantity, true
}

// A shelf keeps how many there are of each article. It stands for a table in a database, and can
// only read and write: callers must exclude each other.
type shelf interface {
	// count returns how many are left: none if it was never set.
	count(ctx context.Context, sku string) (int64, error)
	// put writes how many are left. It returns fence.ErrStale for a token that is older than one it
	// has seen. The zero token is for a writer without a lock, and is always accepted.
	put(ctx context.Context, sku string, left int64, token fence.Token) error
}

// memoryShelf is gone with the process.
type memoryShelf struct {
	mu    sync.Mutex
	left  map[string]int64
	marks map[string]fence.Mark
}

func newMemoryShelf() *memoryShelf {
	return &memoryShelf{left: map[string]int64{}, marks: map[string]fence.Mark{}}
}

func (s *memoryShelf) count(_ context.Context, sku string) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.left[sku], nil
}

func (s *memoryShelf) put(_ context.Context, sku string, left int64, token fence.Token) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if token != (fence.Token{}) {
		mark, err := s.marks[sku].Admit(token)
		if err != nil {
			return err
		}
		s.marks[sku] = mark
	}
	s.left[sku] = left
	return nil
}

// redisShelf is shared by all instances.
type redisShelf struct {
	client *redis.Client
	fence  *redisfence.Fence
}

func newRedisShelf(client *redis.Client) (redisShelf, error) {
	f, err := redisfence.New(client, redisfence.WithPrefix(redisPrefix+"fence"))
	return redisShelf{client, f}, err
}

func (s redisShelf) count(ctx context.Context, sku string) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, redisTimeout)
	defer cancel()
	left, err := s.client.Get(ctx, stockName(sku)).Int64()
	if errors.Is(err, redis.Nil) {
		return 0, nil
	}
	return left, err
}

func (s redisShelf) put(ctx context.Context, sku string, left int64, token fence.Token) error {
	ctx, cancel := context.WithTimeout(ctx, redisTimeout)
	defer cancel()
	if token == (fence.Token{}) {
		return s.client.Set(ctx, stockName(sku), left, keptFor).Err()
	}
	return s.fence.Set(ctx, stockName(sku), strconv.AppendInt(nil, left, 10), keptFor, token)
}

func stockName(sku string) string { return redisPrefix + "stock:" + sku }
