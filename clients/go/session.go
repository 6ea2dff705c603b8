package lockkeeper

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"sort"
	"strconv"
	"sync"
	"time"
)

const (
	// listMax is the most numbers that a list of a keep-alive may have.
	listMax = 4096
	// pollMax bounds the time for which a keep-alive waits: proxies close connections that are silent for long.
	pollMax = 20 * time.Second
	// unansweredMax is how many numbers done_through may lag behind. The service remembers 4,096 ended requests.
	unansweredMax = 2048
)

// session is a session at the service: a lease, and requests for locks that are known by their numbers.
//
//	request n:  new -> waiting -> held -> over        (each may be skipped)
//	new         the acquire is sent, and repeated under its number until it is answered
//	waiting     queued at the service; `keep` learns of the grant or the end
//	held        a Guard has it, until its release or loss
//	over        `finish` is sent, and repeated until it is answered
//
// The lease ends a ttl, less 1 % for the rate of clocks, after the last call that was answered was *sent*: the service
// counts from when the call arrived, which is later. When it ends, everything of the session is lost.
type session struct {
	client *Client
	id     uint64
	secret string
	ttl    time.Duration
	// over is closed when the session has ended.
	over chan struct{}
	// kick makes `keep` send a call that waits for a new request, too.
	kick chan struct{}

	mu       sync.Mutex
	err      error // why the session has ended
	deadline time.Duration
	last     uint64 // the highest number in use
	// unanswered are the numbers whose request is not over.
	unanswered map[uint64]struct{}
	waiting    map[uint64]*waiter
	held       map[uint64]*Guard
	// known are the requests whose end is known, until their finish is answered.
	known map[uint64]struct{}
}

// waiter is an acquire whose request is queued.
type waiter struct {
	done  chan struct{}
	guard *Guard
	err   error
}

type grant struct {
	Request uint64 `json:"request"`
	Token   uint64 `json:"token"`
	Slots   []Slot `json:"slots"`
}

// changes is the answer to a keep-alive.
type changes struct {
	Granted []grant  `json:"granted"`
	Revoked []uint64 `json:"revoked"`
	Ended   []struct {
		Request uint64 `json:"request"`
		End     string `json:"end"`
	} `json:"ended"`
}

func openSession(ctx context.Context, c *Client) (*session, error) {
	var secret [16]byte
	if _, err := rand.Read(secret[:]); err != nil {
		return nil, err
	}
	s := &session{
		client: c, secret: hex.EncodeToString(secret[:]), ttl: c.options.TTL,
		over: make(chan struct{}), kick: make(chan struct{}, 1),
		unanswered: map[uint64]struct{}{}, waiting: map[uint64]*waiter{}, held: map[uint64]*Guard{}, known: map[uint64]struct{}{},
	}
	body := struct {
		TTL       int64  `json:"ttl_ms"`
		LockDelay int64  `json:"lock_delay_ms"`
		Label     string `json:"label"`
	}{s.ttl.Milliseconds(), c.options.LockDelay.Milliseconds(), c.options.Label}
	var opened struct {
		Session uint64 `json:"session"`
	}
	// A repeated call finds the session by its secret, so none is left behind.
	if err := s.call(ctx, http.MethodPost, "/v1/sessions", body, &opened); err != nil {
		return nil, err
	}
	s.id = opened.Session
	go s.keep()
	return s, nil
}

// call makes a call of the session. Its answer renews the lease.
func (s *session) call(ctx context.Context, method, path string, body, answer any) error {
	sent, err := s.client.nodes.ask(ctx, s.over, call{method, path, s.secret, body, s.patience()}, answer)
	return s.arrived(sent, err)
}

func (s *session) arrived(sent time.Duration, err error) error {
	if problemCode(err) == "session-gone" {
		s.end(fmt.Errorf("%w: its session has ended at the service", ErrLost))
		return s.ended()
	}
	if err == nil {
		s.renew(sent)
	}
	return err
}

// patience bounds one attempt, after which another node is asked.
func (s *session) patience() time.Duration {
	return atMost(s.ttl/5+time.Second, 5*time.Second)
}

func atMost(d, most time.Duration) time.Duration {
	if d > most {
		return most
	}
	return d
}

func (s *session) renew(sent time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if until := sent + s.ttl/100*99; until > s.deadline {
		s.deadline = until
	}
}

// validFor is the time until the lease ends, by the client's own clock.
func (s *session) validFor() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return 0
	}
	return s.deadline - now()
}

// ended returns why the session has ended; nil while it lives.
func (s *session) ended() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// end ends the session at the client: what it holds is lost.
func (s *session) end(err error) {
	s.mu.Lock()
	if s.err != nil {
		s.mu.Unlock()
		return
	}
	s.err = err
	held := s.held
	s.held, s.waiting = nil, nil
	s.mu.Unlock()
	for _, guard := range held {
		guard.lose(err)
	}
	close(s.over)
}

func (s *session) close(ctx context.Context) error {
	if s.ended() != nil {
		return nil
	}
	path := "/v1/sessions/" + itoa(s.id)
	_, err := s.client.nodes.ask(ctx, s.over, call{http.MethodDelete, path, s.secret, nil, s.patience()}, nil)
	s.end(ErrClosed)
	return err
}

// keep renews the lease, waits for changes of the requests, and ends the session when its lease ends.
func (s *session) keep() {
	type polled struct {
		changes changes
		err     error
	}
	answers := make(chan polled)
	stopped, stop := context.WithCancel(context.Background())
	defer stop()
	// At most two calls are under way: a new one makes the earlier one answer at once.
	calls, isStale, failed := 0, true, 0
	var trouble error // of the last calls, of which so many have failed
	for {
		if calls == 0 || (isStale && calls == 1) {
			c, pause := s.poll(failed > 0), backoff(failed)
			go func() {
				var answer polled
				sent, _, err := s.client.nodes.once(stopped, c, &answer.changes)
				if answer.err = s.arrived(sent, err); answer.err != nil {
					time.Sleep(atMost(pause, s.ttl/20))
				}
				select {
				case answers <- answer:
				case <-s.over:
				}
			}()
			calls, isStale = calls+1, false
		}
		left := s.validFor()
		if left <= 0 {
			s.end(fmt.Errorf("%w: no call was answered for the ttl of %v (the last error: %v)", ErrLost, s.ttl, trouble))
			return
		}
		// Timers do not count the time of a suspend, so the clock is read several times within a ttl.
		timer := time.NewTimer(atMost(left, s.ttl/8))
		select {
		case answer := <-answers:
			calls--
			failed++
			if trouble = answer.err; trouble == nil {
				failed = 0
				s.changed(answer.changes)
			}
		case <-s.kick:
			isStale = true
		case <-timer.C:
		case <-s.over:
		}
		timer.Stop()
		if s.ended() != nil {
			return
		}
	}
}

// poll is a keep-alive that waits for a change of the requests; not if the last one has failed.
func (s *session) poll(atOnce bool) call {
	wait := atMost(s.ttl/4, pollMax)
	if atOnce {
		wait = 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	waiting := make([]uint64, 0, len(s.waiting))
	for number := range s.waiting {
		waiting = append(waiting, number)
	}
	known := make([]uint64, 0, len(s.known))
	for number := range s.known {
		known = append(known, number)
	}
	body := struct {
		Poll    int64    `json:"poll_ms"`
		Waiting []uint64 `json:"waiting"`
		Known   []uint64 `json:"known"`
	}{wait.Milliseconds(), lowest(waiting), lowest(known)}
	path := "/v1/sessions/" + itoa(s.id) + "/keep-alive"
	// Within a ttl there is time for another node.
	return call{http.MethodPost, path, s.secret, body, wait + atMost(s.ttl/5, 5*time.Second)}
}

// lowest sorts the numbers, and drops those that a list has no room for.
func lowest(numbers []uint64) []uint64 {
	sort.Slice(numbers, func(i, j int) bool { return numbers[i] < numbers[j] })
	if len(numbers) > listMax {
		numbers = numbers[:listMax]
	}
	return numbers
}

// changed handles the changes that the service has named. Each may be named again.
func (s *session) changed(c changes) {
	for _, granted := range c.Granted {
		s.mu.Lock()
		w, isWaiting := s.waiting[granted.Request]
		if isWaiting {
			delete(s.waiting, granted.Request)
			w.guard, w.err = s.hold(granted)
			close(w.done)
		}
		s.mu.Unlock()
	}
	for _, number := range c.Revoked {
		s.mu.Lock()
		guard := s.held[number]
		s.known[number] = struct{}{}
		s.mu.Unlock()
		if guard != nil {
			// Its release tells the service that the work has stopped.
			guard.lose(fmt.Errorf("%w: an operator breaks it", ErrLost))
		}
	}
	for _, ended := range c.Ended {
		s.mu.Lock()
		w, guard := s.waiting[ended.Request], s.held[ended.Request]
		_, isKnown := s.known[ended.Request]
		s.mu.Unlock()
		if isKnown {
			continue
		}
		if guard != nil {
			guard.lose(fmt.Errorf("%w: it has ended (%s)", ErrLost, ended.End))
		}
		s.abandon(ended.Request) // confirms the end
		if w != nil {
			w.err = fmt.Errorf("%w: the request has ended (%s)", ErrLost, ended.End)
			close(w.done)
		}
	}
}

// begin takes a number for a request, and returns it with done_through: the service may forget the answers to all
// requests up to that one.
func (s *session) begin() (number, doneThrough uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last++
	s.unanswered[s.last] = struct{}{}
	return s.last, s.doneThrough()
}

func (s *session) doneThrough() uint64 {
	done := s.last
	for number := range s.unanswered {
		if number <= done {
			done = number - 1
		}
	}
	// A hold may last for long, and is found by its number in any case (R2). The answer to a repeated finish may then be
	// "gone" instead of "released".
	if s.last > unansweredMax && done < s.last-unansweredMax {
		done = s.last - unansweredMax
	}
	return done
}

// acquire makes a request. It waits in the queue until patience ends; if that is nil, it is ErrBusy if the lock is not
// free.
func (s *session) acquire(ctx context.Context, l *Lock, patience context.Context) (*Guard, error) {
	for {
		number, doneThrough := s.begin()
		var status struct {
			State string `json:"state"`
			grant
		}
		err := s.call(ctx, http.MethodPost, l.path(), l.body(s.id, number, doneThrough, patience != nil), &status)
		var problem *Problem
		isProblem := errors.As(err, &problem)
		switch {
		case err == nil && status.State == "held":
			status.Request = number
			s.mu.Lock()
			guard, err := s.hold(status.grant)
			s.mu.Unlock()
			return guard, err
		case err == nil && status.State == "queued":
			return s.wait(patience, number)
		case err == nil:
			s.abandon(number)
			return nil, fmt.Errorf("%w: an operator breaks it", ErrLost)
		case isProblem && problem.Code == "ended" && problem.End == "gone":
			// A request with a higher number has overtaken it on another connection, so it was not executed (R5).
			s.answered(number)
		case isProblem && problem.Code == "busy":
			s.answered(number)
			return nil, fmt.Errorf("%w: %s", ErrBusy, problem.Detail)
		default:
			// Without an answer, the request may hold or wait.
			s.abandon(number)
			return nil, err
		}
	}
}

// wait waits for a request that is queued.
func (s *session) wait(ctx context.Context, number uint64) (*Guard, error) {
	w := &waiter{done: make(chan struct{})}
	s.mu.Lock()
	if s.err != nil {
		defer s.mu.Unlock()
		return nil, s.err
	}
	s.waiting[number] = w
	s.mu.Unlock()
	select {
	case s.kick <- struct{}{}:
	default:
	}
	select {
	case <-w.done:
		return w.guard, w.err
	case <-ctx.Done():
		s.abandon(number)
		return nil, ctx.Err()
	case <-s.over:
		return nil, s.ended()
	}
}

// hold makes a guard of a grant, which does not renew the lease. To be called with s.mu.
func (s *session) hold(granted grant) (*Guard, error) {
	if s.err != nil {
		return nil, s.err
	}
	if s.deadline <= now() {
		// `keep` ends the session.
		return nil, fmt.Errorf("%w: its lease has ended", ErrLost)
	}
	guard := &Guard{
		session: s, number: granted.Request, token: granted.Token, slots: granted.Slots,
		lost: make(chan struct{}), released: make(chan struct{}),
	}
	s.held[granted.Request] = guard
	return guard, nil
}

// answered forgets a request that is over.
func (s *session) answered(number uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.unanswered, number)
	delete(s.known, number)
}

// isOver forgets that a request waits or is held; its finish follows.
func (s *session) isOver(number uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.waiting, number)
	delete(s.held, number)
	s.known[number] = struct{}{}
}

// abandon finishes a request in the background: it is released, leaves the queue, or never begins.
func (s *session) abandon(number uint64) {
	s.isOver(number)
	go func() { _, _ = s.finish(context.Background(), number) }()
}

// finish releases a request or leaves the queue, and returns how the request has ended.
func (s *session) finish(ctx context.Context, number uint64) (end string, err error) {
	s.mu.Lock()
	doneThrough := s.doneThrough()
	s.mu.Unlock()
	path := "/v1/sessions/" + itoa(s.id) + "/requests/" + itoa(number) +
		"?done_through=" + strconv.FormatUint(doneThrough, 10)
	var deleted struct {
		End string `json:"end"`
	}
	if err := s.call(ctx, http.MethodDelete, path, nil, &deleted); err != nil {
		return "", err
	}
	s.answered(number)
	return deleted.End, nil
}

func itoa(number uint64) string { return strconv.FormatUint(number, 10) }
