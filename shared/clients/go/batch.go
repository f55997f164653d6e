package lisarelay

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"sync"
	"time"
)

const (
	// The most items of a request, and the most bytes of their JSON. One item may be longer.
	maxItems  = 500
	maxLength = 1 << 20
	// The most requests of a batcher that are in flight.
	maxInFlight = 2
)

// Result is the result of an item of a batch: a value, or an [Error].
type Result[T any] struct {
	Value T
	Err   error
}

// item is an item of a batch, with what its tries have shown.
type item struct {
	text []byte
	// The id of a message to send.
	id        string
	failures  int
	isInDoubt bool
	// The error of the last try that was not the final one.
	last Error
}

// fail takes the error of a try. If the context of the call has ended, tries is 0. It returns the final error, or true if the item has to be sent again.
func (i *item) fail(failure Error, tries int) (final error, again bool) {
	i.failures++
	if failure.Retryable() && i.failures < tries {
		i.isInDoubt = i.isInDoubt || failure.isInDoubt()
		i.last = failure
		return nil, true
	}
	if broken, isBroken := failure.(*TransportError); isBroken && tries == 0 && i.last != nil {
		failure = &TransportError{Err: fmt.Errorf("%w, after: %v", broken.Err, i.last)}
	}
	return failure.forItem(i.id, i.isInDoubt), false
}

// sender sends items in one request, once. It returns a result for each, or the error of the whole request.
type sender[T any] func(ctx context.Context, items []*item) ([]Result[T], Error)

// newSender returns a sender to a path.
func newSender[T any](c *Client, path string, to listener) sender[T] {
	return func(ctx context.Context, items []*item) (results []Result[T], failure Error) {
		r := request{method: http.MethodPost, path: path, content: contentOf(items), to: to}
		failure = c.try(ctx, r, func(text []byte) (err error) {
			results, err = readResults[T](text, len(items))
			return err
		})
		return results, failure
	}
}

// contentOf returns items as an array of JSON.
func contentOf(items []*item) []byte {
	texts := make([][]byte, len(items))
	for n, one := range items {
		texts[n] = one.text
	}
	joined := append([]byte("["), bytes.Join(texts, []byte(","))...)
	return append(joined, ']')
}

func readResults[T any](text []byte, count int) ([]Result[T], error) {
	read := list[json.RawMessage]{max: count}
	if err := json.Unmarshal(text, &read); err != nil {
		return nil, err
	}
	return resultsOf[T](read)
}

// resultsOf returns the results of a list, which must be full.
func resultsOf[T any](read list[json.RawMessage]) ([]Result[T], error) {
	if len(read.items) != read.max {
		return nil, fmt.Errorf("%d results for a batch of %d", len(read.items), read.max)
	}
	results := make([]Result[T], read.max)
	for n, one := range read.items {
		if err := readResult(one, &results[n]); err != nil {
			return nil, err
		}
	}
	return results, nil
}

func readResult[T any](text []byte, result *Result[T]) error {
	var fields struct {
		Outcome string          `json:"outcome"`
		Error   json.RawMessage `json:"error"`
	}
	if err := json.Unmarshal(text, &fields); err != nil {
		return err
	}
	if fields.Error == nil && fields.Outcome == "" {
		return errors.New("a result without an outcome")
	}
	if fields.Error == nil {
		return json.Unmarshal(text, &result.Value)
	}
	problem, err := parseProblem(fields.Error)
	if err != nil {
		return err
	}
	if problem.Status == 0 {
		problem.Status = http.StatusInternalServerError
	}
	result.Err = problem
	return nil
}

// conclude passes each final result to end. It returns the indexes of the items that have to be sent again, and the time that the
// server asks to wait before.
func conclude[T any](items []*item, results []Result[T], whole Error, tries int, end func(n int, result Result[T])) (again []int, after time.Duration) {
	for n, one := range items {
		failure := whole
		if failure == nil && results[n].Err != nil {
			failure = results[n].Err.(Error)
		}
		if failure == nil {
			end(n, results[n])
			continue
		}
		if failure.retryAfter() > after {
			after = failure.retryAfter()
		}
		final, isAgain := one.fail(failure, tries)
		if isAgain {
			again = append(again, n)
		} else {
			end(n, Result[T]{Err: final})
		}
	}
	return again, after
}

// sendInOrder sends items in order, one request after the other. It returns a result for each. If a request is refused as a whole,
// no more are sent: they would be refused, too.
func sendInOrder[T any](ctx context.Context, items []*item, send sender[T], tries int) []Result[T] {
	results := make(map[*item]Result[T], len(items))
	for left := items; len(left) > 0; {
		var pending []*item
		for room := newSpace(); len(left) > 0 && room.take(left[0]); left = left[1:] {
			pending = append(pending, left[0])
		}
		for len(pending) > 0 {
			answers, whole := send(ctx, pending)
			if ctx.Err() != nil {
				tries = 0
			}
			if whole != nil && (tries == 0 || !whole.Retryable()) {
				pending, left = append(pending, left...), nil
			}
			again, after := conclude(pending, answers, whole, tries, func(n int, result Result[T]) { results[pending[n]] = result })
			pending = pick(pending, again)
			if len(pending) > 0 {
				pause(ctx, pending[0].failures, after)
			}
		}
	}
	ordered := make([]Result[T], len(items))
	for n, one := range items {
		ordered[n] = results[one]
	}
	return ordered
}

// space is the space that is left in a request.
type space struct{ items, length int }

func newSpace() *space { return &space{maxItems, maxLength} }

// take takes the space of an item. It returns false if the item does not fit. The first item always fits.
func (s *space) take(one *item) bool {
	isFirst := s.items == maxItems
	s.items--
	s.length -= len(one.text) + 1
	return isFirst || (s.items >= 0 && s.length >= 0)
}

func pick[E any](all []E, indexes []int) []E {
	picked := make([]E, len(indexes))
	for n, index := range indexes {
		picked[n] = all[index]
	}
	return picked
}

// batcher sends the items of single calls in batches. The first one is sent at once. Those that are added while requests are in
// flight are sent together in the next request. A repeated item does not delay others.
type batcher[T any] struct {
	path  string
	send  sender[T]
	tries int

	mu      sync.Mutex
	waiting []*call[T]
	// The goroutines that send, and those of them that wait for an answer.
	runs, inFlight int
	// The callers between enter and leave.
	callers int
}

type call[T any] struct {
	item *item
	done chan Result[T]
	// True once the caller does not wait any more.
	hasLeft bool
}

func newBatcher[T any](path string, send sender[T], tries int) *batcher[T] {
	return &batcher[T]{path: path, send: send, tries: tries}
}

func (b *batcher[T]) enter() {
	b.mu.Lock()
	b.callers++
	b.mu.Unlock()
}

func (b *batcher[T]) leave() {
	b.mu.Lock()
	b.callers--
	b.mu.Unlock()
}

// isIdle reports whether the batcher may be dropped. A call without a caller is not sent again.
func (b *batcher[T]) isIdle() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.callers == 0 && b.runs == 0
}

// isAboutToSend reports whether a goroutine will soon send the calls that wait.
func (b *batcher[T]) isAboutToSend() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.waiting) > 0 && b.runs > b.inFlight
}

// add sends an item. If the context ends before the item is in flight, it is not sent.
func (b *batcher[T]) add(ctx context.Context, one *item) (T, error) {
	added := &call[T]{item: one, done: make(chan Result[T], 1)}
	if ctx.Err() == nil {
		b.push(added)
	}
	select {
	case result := <-added.done:
		return result.Value, result.Err
	case <-ctx.Done():
		b.mu.Lock()
		defer b.mu.Unlock()
		added.hasLeft = true
		var none T
		return none, &TransportError{ID: one.id, Err: noAnswer(http.MethodPost, b.path, ctx.Err(), one.last)}
	}
}

func (b *batcher[T]) push(calls ...*call[T]) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting = append(b.waiting, calls...)
	if b.runs < maxInFlight {
		b.runs++
		go b.run()
	}
}

// run sends batches while calls wait.
func (b *batcher[T]) run() {
	hasEnded := false
	defer func() {
		if !hasEnded {
			// A transport of the caller has ended this goroutine.
			go b.run()
		}
	}()
	b.waitForMore()
	for calls := b.take(); len(calls) > 0; calls = b.take() {
		b.sendOnce(calls)
	}
	hasEnded = true
}

// waitForMore yields until the code that runs now adds no more: about a microsecond if nothing runs, and at most 1 ms, unless a
// single yield takes longer. The code may run on another processor, so a single yield shows little.
func (b *batcher[T]) waitForMore() {
	start, seen := time.Now(), 0
	for quiet := 0; quiet < 4 && seen < maxItems && time.Since(start) < time.Millisecond; quiet++ {
		runtime.Gosched()
		b.mu.Lock()
		if len(b.waiting) > seen {
			seen, quiet = len(b.waiting), 0
		}
		b.mu.Unlock()
	}
}

// take returns the calls of the next request, without those whose callers have left. If there are none, this run ends.
func (b *batcher[T]) take() []*call[T] {
	b.mu.Lock()
	defer b.mu.Unlock()
	var calls []*call[T]
	for room := newSpace(); len(b.waiting) > 0; b.waiting = b.waiting[1:] {
		next := b.waiting[0]
		if !next.hasLeft {
			if !room.take(next.item) {
				break
			}
			calls = append(calls, next)
		}
		b.waiting[0] = nil
	}
	if len(calls) > 0 {
		b.inFlight++
	} else {
		b.runs--
	}
	return calls
}

func (b *batcher[T]) sendOnce(calls []*call[T]) {
	items := make([]*item, len(calls))
	for n, one := range calls {
		items[n] = one.item
	}
	var results []Result[T]
	var whole Error = &TransportError{Err: errors.New("the transport did not return")}
	defer func() { b.conclude(calls, items, results, whole) }()
	// No single caller may end the request of all.
	results, whole = b.send(context.Background(), items)
}

// conclude ends the calls of a request that have a final result. The others wait again after a pause.
func (b *batcher[T]) conclude(calls []*call[T], items []*item, results []Result[T], whole Error) {
	// The callers read what the tries have shown.
	b.mu.Lock()
	b.inFlight--
	indexes, after := conclude(items, results, whole, b.tries, func(n int, result Result[T]) { calls[n].done <- result })
	b.mu.Unlock()
	if again := pick(calls, indexes); len(again) > 0 {
		go func() {
			pause(context.Background(), again[0].item.failures, after)
			b.push(again...)
		}()
	}
}
