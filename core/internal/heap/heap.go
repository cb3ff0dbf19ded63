// Package heap is container/heap with a type, for items that know their index in it.
package heap

import "container/heap"

// Item is an item of a heap.
type Item[T any] interface {
	// Before reports whether the item comes before another one of its heap.
	Before(other T) bool
	// Index returns where the heap keeps the item's index: -1 if it is in no heap.
	Index() *int
}

// Heap is a heap of items, with the first one at its start. The zero value is empty.
type Heap[T Item[T]] []T

// Push adds an item.
func (h *Heap[T]) Push(x T) { heap.Push((*items[T])(h), x) }

// Pop removes the first item.
func (h *Heap[T]) Pop() T { return heap.Pop((*items[T])(h)).(T) }

// Remove removes an item.
func (h *Heap[T]) Remove(x T) { heap.Remove((*items[T])(h), *x.Index()) }

// Fix restores the order after a change of an item.
func (h *Heap[T]) Fix(x T) { heap.Fix((*items[T])(h), *x.Index()) }

// items implements heap.Interface.
type items[T Item[T]] []T

func (s items[T]) Len() int           { return len(s) }
func (s items[T]) Less(i, j int) bool { return s[i].Before(s[j]) }

func (s items[T]) Swap(i, j int) {
	s[i], s[j] = s[j], s[i]
	*s[i].Index(), *s[j].Index() = i, j
}

func (s *items[T]) Push(x any) {
	item := x.(T)
	*item.Index() = len(*s)
	*s = append(*s, item)
}

func (s *items[T]) Pop() any {
	last := len(*s) - 1
	item := (*s)[last]
	clear((*s)[last:])
	*s = (*s)[:last]
	*item.Index() = -1
	return item
}
