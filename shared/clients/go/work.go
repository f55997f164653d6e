package lisarelay

import (
	"context"
	"errors"
	"fmt"
	"log"
	"regexp"
	"runtime"
	"runtime/debug"
	"sync"
	"time"
)

const (
	defaultGroup = "default"
	defaultLease = time.Minute
	minLease     = time.Second
	maxLease     = 12 * time.Hour
	// The most bytes of the name of a worker.
	maxConsumer = 100
	// The most deliveries of a pull, and the most pulls in flight.
	maxPull  = 200
	maxPulls = 2
	// The messages that are worth a pull of their own: one request for 50 costs less than two for 25.
	few = 50
	// The time after a stop for which outcomes are repeated.
	grace = 30 * time.Second
)

var (
	topicPattern = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,79}$`)
	groupPattern = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,63}$`)
)

// Handler handles a delivery. Nil acknowledges it. An [Outcome], which may be wrapped, settles it accordingly. Any other error, and a
// panic, is a failed attempt, which is logged. A returned outcome is not logged, not even a [Retry]. A handler may also settle its
// delivery itself: then its result is ignored, but an error is logged.
//
// The context ends when the lease is lost, because another worker may have the message then. It does not end when the worker is
// stopped. It has the values of the context of [Client.Work].
type Handler func(ctx context.Context, delivery *Delivery) error

// WorkOptions are the options of a worker. The zero value has the defaults.
type WorkOptions struct {
	// Group is "default" by default.
	Group string
	// Concurrency is the number of handlers that run at the same time. Zero means 1.
	Concurrency int
	// MaxPerKey is the largest number of messages with the same ordering key in a pull, at most 200. They are handled one after
	// another, in order. Those behind a message that is not acknowledged are delivered again after it. Zero means 1.
	MaxPerKey int
	// Lease is the lease of each delivery, 1 s to 12 h. It is extended while a handler runs. If the worker is killed, the leases of
	// its messages end after at most that time, and their attempts have failed. Zero means 1 minute.
	Lease time.Duration
	// Consumer is the name of the worker, up to 100 bytes, which `lisa-manager workers` lists.
	Consumer string
	// Log receives failures: failed attempts, pulls, extensions and settlements, and lost leases. It must be safe for concurrent use.
	// By default, they go to the standard logger of the package log.
	Log func(text string, err error)
}

// Work pulls messages and runs a handler for each, until the context ends. Then it pulls no more, waits for the running handlers,
// sends their outcomes, and returns nil. An outcome that fails is repeated for at most 30 s after the stop, or after the end of its
// handler if that is later.
//
// It never holds more messages than it has handlers, and sends outcomes in batches while the next messages are pulled. It repeats a
// pull that fails with a retryable error. It returns any other error after its handlers have ended, and an [*ArgumentError] for
// wrong arguments before the first pull.
func (c *Client) Work(ctx context.Context, topic string, handler Handler, options WorkOptions) error {
	if err := options.check(topic, handler); err != nil {
		return err
	}
	if options.Group == "" {
		options.Group = defaultGroup
	}
	if options.Concurrency == 0 {
		options.Concurrency = 1
	}
	if options.MaxPerKey == 0 {
		options.MaxPerKey = 1
	}
	if options.Lease == 0 {
		options.Lease = defaultLease
	}
	if options.Log == nil {
		options.Log = func(text string, err error) { log.Printf("lisarelay: %s: %v", text, err) }
	}
	where, err := path("topics", topic, "groups", options.Group, "settle-and-pull")
	if err != nil {
		return err
	}
	w := &worker{client: c, topic: topic, path: where, handler: handler, options: options}
	return w.run(ctx)
}

func (o WorkOptions) check(topic string, handler Handler) error {
	b := newBody()
	b.name("topic", topic, topicPattern)
	if handler == nil {
		b.refuse("handler: is nil")
	}
	if o.Group != "" {
		b.name("Group", o.Group, groupPattern)
	}
	if o.Concurrency < 0 {
		b.refuse("Concurrency: %d is negative", o.Concurrency)
	}
	b.deliveries("MaxPerKey", "max_per_key", o.MaxPerKey)
	if o.Lease != 0 && (o.Lease < minLease || o.Lease > maxLease) {
		b.refuse("Lease: %v is not in 1 s to 12 h", o.Lease)
	}
	b.text("Consumer", o.Consumer)
	if len(o.Consumer) > maxConsumer {
		b.refuse("Consumer: is longer than %d bytes", maxConsumer)
	}
	return b.err()
}

// worker pulls a run of messages for each free handler. Runs end in any order, and the outcomes are sent in batches while the next
// messages are pulled and handled: as many outcomes as messages may be in flight. While messages are ready, a batch of outcomes is
// also a pull.
type worker struct {
	client *Client
	topic  string
	// That of settle-and-pull.
	path    string
	handler Handler
	options WorkOptions
	settles *batcher[Ended]
	// The context of the pulls, which stop ends.
	pulling context.Context
	stop    context.CancelFunc
	// Ends the repetition of outcomes after a stop.
	outcomes context.Context
	// The pulls, the handlers with their outcomes, and the extensions.
	tasks sync.WaitGroup
	// Has a value after a change of the fields below.
	changed chan struct{}

	mu      sync.Mutex
	running map[*running]struct{}
	// The runs, each of which has a handler.
	runs int
	// The runs that pulls in flight ask for.
	requested int
	pulls     int
	// The outcomes that are not settled yet, and those of them in a request.
	settling, sending int
	// True if the last pull found so many messages that more are probably ready.
	areReady bool
	// True once a request that also pulls was refused.
	isRefused bool
	// The failed pulls since the last one that succeeded.
	failures  int
	isStopped bool
	// The error that ended the worker.
	fatal error
}

// running is a delivery whose handler runs, or waits for those before it in its run. The mutex of the worker guards its fields.
type running struct {
	delivery *Delivery
	run      *run
	// The context of the handler.
	ctx        context.Context
	cancel     context.CancelFunc
	extendedAt time.Time
	isLost     bool
}

// run has the messages of one ordering key in a pull, which are handled one after another, or one message without a key. The mutex of
// the worker guards its fields.
type run struct {
	waiting []*running
	// True once a message of it was not acknowledged. Those behind it have to be delivered after it.
	isBroken bool
}

func (w *worker) run(ctx context.Context) error {
	w.running = map[*running]struct{}{}
	w.changed = make(chan struct{}, 1)
	pulling, stop := context.WithCancel(ctx)
	defer stop()
	outcomes, endOutcomes := context.WithCancel(context.Background())
	defer endOutcomes()
	extending, endExtending := context.WithCancel(context.Background())
	defer endExtending()
	w.pulling, w.stop, w.outcomes = pulling, stop, outcomes
	w.settles = newBatcher(settlePath, w.send, w.client.tries)
	go w.extendLeases(extending)
	for pulling.Err() == nil {
		w.mu.Lock()
		runs := w.reserve(w.settling)
		w.mu.Unlock()
		if runs > 0 {
			go w.pull(runs)
		} else {
			w.waitForChange()
		}
	}
	w.mu.Lock()
	w.isStopped = true
	w.mu.Unlock()
	timer := time.AfterFunc(grace, endOutcomes)
	defer timer.Stop()
	w.tasks.Wait()
	return w.fatal
}

// waitForChange waits until something ends. What ends at about the same time counts as one change. If its outcomes are about to be
// sent, it waits until they are: that may be the next pull.
func (w *worker) waitForChange() {
	select {
	case <-w.changed:
		for isFirst := true; isFirst || w.settles.isAboutToSend(); isFirst = false {
			runtime.Gosched()
		}
	case <-w.pulling.Done():
	}
}

// reserve returns the number of runs to pull now, while this many outcomes are on their way, and counts that pull until endPull.
// The first pull is for half of the free handlers, so that the gateway can fill a second one while the messages of the first are
// handled, but not for few. The second is only for at least half of all handlers: otherwise, the first one will return soon. The
// caller holds the mutex.
func (w *worker) reserve(outcomes int) int {
	max := w.options.Concurrency - w.runs - w.requested
	isSecond := w.pulls > 0
	isBusy := w.pulls == maxPulls || outcomes >= w.options.Concurrency*w.options.MaxPerKey
	if isBusy || (isSecond && max*2 < w.options.Concurrency) || max <= 0 || w.pulling.Err() != nil {
		return 0
	}
	if half := (max + 1) / 2; !isSecond && half > few {
		max = half
	} else if !isSecond && max > few {
		max = few
	}
	if max > maxPull {
		max = maxPull
	}
	w.pulls++
	w.requested += max
	w.tasks.Add(1)
	return max
}

// pullOptions returns the options of a pull of this many runs.
func (w *worker) pullOptions(runs int) PullOptions {
	o := w.options
	options := PullOptions{Group: o.Group, Max: runs, Lease: o.Lease, Consumer: o.Consumer}
	if o.MaxPerKey > 1 {
		options.Max, options.MaxPerKey, options.MaxKeys = runs*o.MaxPerKey, o.MaxPerKey, runs
		if options.Max > maxPull {
			options.Max = maxPull
		}
	}
	return options
}

// endPull ends a pull of this many runs, and handles those that it returned.
func (w *worker) endPull(runs int, deliveries []*Delivery) {
	w.tasks.Add(len(deliveries))
	handler := detached{w.pulling}
	now, pulled := time.Now(), runsOf(deliveries)
	w.update(func() {
		w.pulls--
		w.requested -= runs
		w.runs += len(pulled)
		w.areReady = len(pulled)*2 >= runs || len(deliveries)*2 >= w.pullOptions(runs).Max
		for _, one := range pulled {
			begun := &run{}
			for _, delivery := range one {
				delivery.settles = w.settles
				r := &running{delivery: delivery, run: begun, extendedAt: now}
				r.ctx, r.cancel = context.WithCancel(handler)
				w.running[r] = struct{}{}
				begun.waiting = append(begun.waiting, r)
			}
			w.begin(begun)
		}
	})
}

// begin begins the next handler of a run. The caller holds the mutex.
func (w *worker) begin(r *run) {
	next := r.waiting[0]
	r.waiting = r.waiting[1:]
	go w.handle(next)
}

// goOn begins the next handler of a run, or ends the run: those that wait are delivered again, uncounted. The caller holds the mutex.
func (w *worker) goOn(r *run) {
	if len(r.waiting) > 0 && !r.isBroken && !r.waiting[0].isLost && w.pulling.Err() == nil {
		w.begin(r)
		return
	}
	w.runs--
	for _, one := range r.waiting {
		w.leave(one)
		go func(one *running) {
			defer w.tasks.Done()
			one.cancel()
			w.conclude(one, Defer(0))
		}(one)
	}
	r.waiting = nil
}

// leave counts a message as one that is settled, until conclude. The caller holds the mutex.
func (w *worker) leave(r *running) {
	delete(w.running, r)
	w.settling++
}

func (w *worker) update(change func()) {
	w.mu.Lock()
	change()
	w.mu.Unlock()
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

func (w *worker) pull(runs int) {
	defer w.tasks.Done()
	deliveries, err := w.client.Pull(w.pulling, w.topic, w.pullOptions(runs))
	if err != nil {
		w.pullFailed(err)
	} else {
		w.update(func() { w.failures = 0 })
	}
	w.endPull(runs, deliveries)
}

// pullFailed waits before the next pull, or ends the worker if the error is not retryable.
func (w *worker) pullFailed(err error) {
	if w.pulling.Err() != nil {
		return
	}
	var failure Error
	if !errors.As(err, &failure) || !failure.Retryable() {
		w.update(func() {
			if w.fatal == nil {
				w.fatal = err
			}
		})
		w.stop()
		return
	}
	w.options.Log("cannot pull; retrying", err)
	w.mu.Lock()
	w.areReady = false
	w.failures++
	failures := w.failures
	w.mu.Unlock()
	pause(w.pulling, failures, failure.retryAfter())
}

// handle runs a handler, and settles its delivery. A handler that panics or ends its goroutine is a failed attempt.
func (w *worker) handle(r *running) {
	defer w.tasks.Done()
	outcome, err := Outcome{}, errors.New("the handler did not return")
	defer func() {
		logged := err
		if panicked := recover(); panicked != nil {
			err = fmt.Errorf("panic: %v", panicked)
			logged = fmt.Errorf("%w\n%s", err, debug.Stack())
		}
		if err != nil {
			outcome = Retry(0, err)
		}
		w.end(r, outcome, logged)
	}()
	outcome, err = outcomeOf(w.handler(r.ctx, r.delivery))
}

// outcomeOf returns the outcome that a handler returned, or the error that makes it a failed attempt.
func outcomeOf(err error) (Outcome, error) {
	outcome := Ack()
	if err != nil && !errors.As(err, &outcome) {
		return Outcome{}, err
	}
	if _, err := outcome.item("token"); err != nil {
		return Outcome{}, wrongOutcome(err)
	}
	return outcome, nil
}

// end goes on with the run of a delivery whose handler has ended, and settles the delivery. The next handler does not wait for that.
func (w *worker) end(r *running, outcome Outcome, failure error) {
	r.cancel()
	isAcked := outcome.verb == "ack"
	if r.delivery.hasEnded() {
		isAcked = r.delivery.wasAcked()
	}
	var isLost bool
	w.update(func() {
		w.leave(r)
		isLost = r.isLost
		r.run.isBroken = r.run.isBroken || isLost || !isAcked
		w.goOn(r.run)
	})
	if failure != nil && !isLost {
		w.options.Log(fmt.Sprintf("%v failed", r.delivery), failure)
	}
	w.conclude(r, outcome)
}

// conclude settles a delivery, unless the handler did it or the lease was lost.
func (w *worker) conclude(r *running, outcome Outcome) {
	w.mu.Lock()
	isLost, leaseEnds := r.isLost, r.extendedAt.Add(w.options.Lease)
	w.mu.Unlock()
	if !isLost && !r.delivery.hasEnded() {
		w.settle(r, outcome, leaseEnds)
	}
	w.update(func() { w.settling-- })
}

// settle settles a delivery. Since the work is done, it retries until the lease ends; after a stop, for half a minute.
func (w *worker) settle(r *running, outcome Outcome, leaseEnds time.Time) {
	delivery := r.delivery
	ctx, cancel := w.outcomeContext()
	defer cancel()
	for isWrong := false; ; {
		ended, err := delivery.Settle(ctx, outcome)
		var problem *Problem
		isProblem := errors.As(err, &problem)
		if err == nil || isProblem && problem.MaybeSettled {
			if !ended.DueAt.IsZero() {
				w.breakRun(r.run)
			}
			return
		}
		if isStale(err) {
			w.breakRun(r.run)
			w.logLost(delivery, err)
			return
		}
		if isProblem && problem.Code == "invalid" && !isWrong {
			w.options.Log(fmt.Sprintf("the outcome of %v is wrong", delivery), err)
			isWrong, outcome = true, Retry(0, wrongOutcome(err))
			continue
		}
		var failure Error
		if !errors.As(err, &failure) || !failure.Retryable() || time.Now().After(leaseEnds) || ctx.Err() != nil {
			w.breakRun(r.run)
			w.options.Log(fmt.Sprintf("cannot settle %v; it is delivered again after its lease", delivery), err)
			return
		}
		w.options.Log(fmt.Sprintf("cannot settle %v; retrying", delivery), err)
		pause(ctx, 3, failure.retryAfter())
	}
}

// breakRun ends a run after its present handler: a message of it is delivered again.
func (w *worker) breakRun(r *run) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r.isBroken = true
}

func wrongOutcome(err error) error {
	return fmt.Errorf("the handler returned a wrong outcome: %w", err)
}

// outcomeContext returns a context that ends half a minute after the worker is stopped. If it has been stopped, the time starts now.
func (w *worker) outcomeContext() (context.Context, context.CancelFunc) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.isStopped {
		return context.WithTimeout(context.Background(), grace)
	}
	return context.WithCancel(w.outcomes)
}

// extendLeases extends each lease after a third of it. Those due at the same time share a request.
func (w *worker) extendLeases(ctx context.Context) {
	every := w.options.Lease / 6
	if every < 10*time.Millisecond {
		every = 10 * time.Millisecond
	}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case now := <-ticker.C:
			w.extendThoseDue(now)
		case <-ctx.Done():
			return
		}
	}
}

func (w *worker) extendThoseDue(now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for r := range w.running {
		if now.Before(r.extendedAt.Add(w.options.Lease/3)) || !r.delivery.isOpen() || r.isLost {
			continue
		}
		r.extendedAt = now
		w.tasks.Add(1)
		go w.extend(r)
	}
}

// extend extends a lease. After a failure, the handler continues, unless the lease was lost.
func (w *worker) extend(r *running) {
	defer w.tasks.Done()
	_, err := r.delivery.Extend(r.ctx, w.options.Lease)
	if err == nil {
		return
	}
	isOpen, isLost := r.delivery.isOpen(), isStale(err)
	w.mu.Lock()
	_, isRunning := w.running[r]
	if !isRunning || !isOpen || r.isLost {
		w.mu.Unlock()
		return
	}
	r.isLost = isLost
	w.mu.Unlock()
	if isLost {
		w.logLost(r.delivery, err)
		r.cancel()
	} else {
		w.options.Log(fmt.Sprintf("cannot extend the lease of %v", r.delivery), err)
	}
}

func (w *worker) logLost(delivery *Delivery, err error) {
	w.options.Log(fmt.Sprintf("the lease of %v was lost; another worker may have it", delivery), err)
}

// detached is a context without its end.
type detached struct{ context.Context }

func (detached) Deadline() (time.Time, bool) { return time.Time{}, false }
func (detached) Done() <-chan struct{}       { return nil }
func (detached) Err() error                  { return nil }
