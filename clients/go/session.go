package lockkeeper

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptrace"
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

var (
	// errBroken: a request that no Guard has yet was broken, or has ended. It is made anew.
	errBroken = errors.New("the request was broken")
	// errOthers stands for the last error of a call that was not sent.
	errOthers = errors.New("none; it waits for calls before it")
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
// counts from when the call arrived, which is later. When it ends, everything of the session is lost, whatever arrives later.
type session struct {
	client *Client
	id     uint64
	secret string
	ttl    time.Duration
	// over is closed when the session has ended.
	over chan struct{}
	// kick makes `keep` send a call that waits for a new request, too.
	kick chan struct{}
	// sending has one place: for who takes a number, until its request is written.
	sending chan struct{}

	mu       sync.Mutex
	err      error // why the session has ended
	trouble  error // of the last keep-alive
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

// changes is the answer to a keep-alive, and part of others.
type changes struct {
	Granted []grant  `json:"granted"`
	Revoked []uint64 `json:"revoked"`
	Ended   []struct {
		Request uint64 `json:"request"`
		End     string `json:"end"`
	} `json:"ended"`
}

type acquired struct {
	State string `json:"state"`
	grant
	changes
}

type finished struct {
	End string `json:"end"`
	changes
}

type opened struct {
	Session uint64 `json:"session"`
}

func (c *changes) isWhole() bool  { return c.Revoked != nil && c.Ended != nil }
func (a *acquired) isWhole() bool { return a.State != "" && a.changes.isWhole() }
func (f *finished) isWhole() bool { return f.End != "" && f.changes.isWhole() }
func (o *opened) isWhole() bool   { return o.Session != 0 }

func openSession(ctx context.Context, c *Client) (*session, error) {
	var secret [16]byte
	if _, err := rand.Read(secret[:]); err != nil {
		return nil, err
	}
	s := &session{
		client: c, secret: hex.EncodeToString(secret[:]), ttl: c.options.TTL,
		over: make(chan struct{}), kick: make(chan struct{}, 1), sending: make(chan struct{}, 1),
		unanswered: map[uint64]struct{}{}, waiting: map[uint64]*waiter{}, held: map[uint64]*Guard{}, known: map[uint64]struct{}{},
	}
	body := struct {
		TTL       int64  `json:"ttl_ms"`
		LockDelay int64  `json:"lock_delay_ms"`
		Label     string `json:"label"`
	}{s.ttl.Milliseconds(), c.options.LockDelay.Milliseconds(), c.options.Label}
	var opened opened
	// A repeated call finds the session by its secret. If ctx ends first, the service may have one until its ttl ends.
	if err := s.call(ctx, http.MethodPost, "/v1/sessions", body, &opened); err != nil {
		return nil, err
	}
	s.id = opened.Session
	go s.keep()
	return s, nil
}

// call makes a call of the session. Its answer renews the lease.
func (s *session) call(ctx context.Context, method, path string, body any, a answer) error {
	sent, err := s.client.nodes.ask(ctx, s.over, call{method, path, s.secret, body, s.patience()}, a)
	return s.arrived(sent, err)
}

func (s *session) arrived(sent time.Duration, err error) error {
	if problemCode(err) == "session-gone" {
		s.end(fmt.Errorf("%w: its session has ended at the service", ErrLost))
		return s.ended()
	}
	if err == nil {
		s.renew(sent)
	} else if ended := s.ended(); ended != nil {
		return ended
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
	isLate := s.deadline != 0 && s.deadline <= now()
	if until := sent + s.ttl/100*99; !isLate && until > s.deadline {
		s.deadline = until
	}
	s.mu.Unlock()
	if isLate {
		s.expire()
	}
}

// validFor is the time until the lease ends, by the client's own clock. If it has ended, it ends the session.
func (s *session) validFor() time.Duration {
	s.mu.Lock()
	left, err := s.deadline-now(), s.err
	s.mu.Unlock()
	if err == nil && left > 0 {
		return left
	}
	s.expire()
	return 0
}

// expire ends the session since its lease has ended. The service may not know that yet.
func (s *session) expire() {
	s.mu.Lock()
	trouble := s.trouble
	s.mu.Unlock()
	if s.end(fmt.Errorf("%w: no call was answered for the ttl of %v (the last error: %v)", ErrLost, s.ttl, trouble)) {
		go s.leave()
	}
}

// leave ends the session at the service, by whose own clock it would last for up to a ttl more.
func (s *session) leave() {
	ctx, cancel := context.WithTimeout(context.Background(), s.ttl)
	defer cancel()
	_ = s.delete(ctx)
}

func (s *session) delete(ctx context.Context) error {
	path := "/v1/sessions/" + itoa(s.id)
	_, err := s.client.nodes.ask(ctx, nil, call{http.MethodDelete, path, s.secret, nil, s.patience()}, nil)
	return err
}

// ended returns why the session has ended; nil while it lives.
func (s *session) ended() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// end ends the session at the client: what it holds is lost. It returns false if it had ended before.
func (s *session) end(err error) bool {
	s.mu.Lock()
	if s.err != nil {
		s.mu.Unlock()
		return false
	}
	s.err = err
	held := s.held
	s.held, s.waiting = nil, nil
	s.mu.Unlock()
	for _, guard := range held {
		guard.lose(err)
	}
	close(s.over)
	return true
}

func (s *session) close(ctx context.Context) error {
	if s.ended() != nil {
		return nil
	}
	err := s.delete(ctx)
	if s.end(ErrClosed) && err != nil {
		go s.leave()
	}
	return err
}

// keep renews the lease, waits for changes of the requests, and ends the session when its lease ends.
func (s *session) keep() {
	type polled struct {
		number  int
		changes changes
		err     error
	}
	answers := make(chan polled)
	stopped, stop := context.WithCancel(context.Background())
	defer stop()
	// At most two calls are under way: a new one makes the earlier one answer at once.
	calls, isStale, failed, newest := 0, true, 0, 0
	for {
		if calls == 0 || (isStale && calls == 1) {
			c, pause := s.poll(failed > 0), backoff(failed)
			newest++
			answer := polled{number: newest}
			go func() {
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
			return
		}
		// Timers do not count the time of a suspend, so the clock is read several times within a ttl.
		timer := time.NewTimer(atMost(left, s.ttl/8))
		select {
		case answer := <-answers:
			calls--
			if answer.number == newest && calls > 0 {
				// They may have arrived swapped: the earlier one waits now, and does not name the newest requests.
				isStale = true
			}
			failed++
			if answer.err == nil {
				failed = 0
				s.changed(answer.changes)
			}
			s.mu.Lock()
			s.trouble = answer.err
			s.mu.Unlock()
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

// changed handles the changes that the service has named. Each may be named again, and later than its request's end.
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
		s.broken(number, false, fmt.Errorf("%w: an operator breaks it", ErrLost))
	}
	for _, ended := range c.Ended {
		s.broken(ended.Request, true, fmt.Errorf("%w: it has ended (%s)", ErrLost, ended.End))
	}
}

// broken handles that an operator breaks a request, or that it has ended although nobody finished it.
func (s *session) broken(number uint64, hasEnded bool, err error) {
	s.mu.Lock()
	_, isKnown := s.known[number]
	w, guard := s.waiting[number], s.held[number]
	if _, isOpen := s.unanswered[number]; isOpen {
		// If the answer to its acquire comes later than this, `usable` refuses it.
		s.known[number] = struct{}{}
	}
	s.mu.Unlock()
	if isKnown {
		return
	}
	if guard != nil {
		// The release tells the service that the work has stopped.
		guard.lose(err)
	}
	if w != nil || hasEnded {
		s.abandon(number)
	}
	if w != nil {
		w.err = errBroken
		close(w.done)
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
	for isAgain := false; ; isAgain = true {
		number, status, err := s.request(ctx, l, patience != nil, isAgain)
		if number == 0 {
			return nil, err
		}
		var guard *Guard
		switch {
		case err == nil && status.State == "held":
			status.Request = number
			s.mu.Lock()
			guard, err = s.hold(status.grant)
			s.mu.Unlock()
		case err == nil && status.State == "queued":
			guard, err = s.wait(ctx, patience, number)
		case err == nil: // revoked
			err = errBroken
		}
		var problem *Problem
		isProblem := errors.As(err, &problem)
		switch {
		case err == nil:
			return guard, nil
		case isProblem && problem.Code == "busy":
			s.answered(number)
			return nil, fmt.Errorf("%w: %s", ErrBusy, problem.Detail)
		case isProblem && problem.Code == "ended" && problem.End == "gone":
			// A request with a higher number has overtaken it on another connection, so it was not executed (R5).
			s.answered(number)
		case err == errBroken || (isProblem && problem.Code == "ended"):
			s.abandon(number)
		case err == ErrTimedOut:
			return nil, err
		default:
			// Without an answer, the request may hold or wait.
			s.abandon(number)
			return nil, err
		}
	}
}

// request sends an acquire under the next number; 0 if it was not sent. Numbers are to arrive in their order (R5), so the
// next one is sent when this one is written; if it is made again, when it is answered: then nothing can overtake it.
func (s *session) request(ctx context.Context, l *Lock, waits, isAgain bool) (uint64, acquired, error) {
	var status acquired
	select {
	case s.sending <- struct{}{}:
	case <-s.over:
		return 0, status, s.ended()
	case <-ctx.Done():
		return 0, status, unanswered(ctx, errOthers)
	}
	var once sync.Once
	written := func() { once.Do(func() { <-s.sending }) }
	defer written()
	number, doneThrough := s.begin()
	if !isAgain {
		ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteRequest: func(info httptrace.WroteRequestInfo) {
			if info.Err == nil {
				written()
			}
		}})
	}
	err := s.call(ctx, http.MethodPost, l.path(), l.body(s.id, number, doneThrough, waits), &status)
	return number, status, err
}

// wait waits for a request that is queued, until patience or ctx ends.
func (s *session) wait(ctx, patience context.Context, number uint64) (*Guard, error) {
	w := &waiter{done: make(chan struct{})}
	s.mu.Lock()
	err := s.usable(number)
	if err == nil {
		s.waiting[number] = w
	}
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	select {
	case s.kick <- struct{}{}:
	default:
	}
	select {
	case <-w.done:
		return w.guard, w.err
	case <-patience.Done():
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		// It may have been granted just now: only the answer to its finish says that nothing is held (P12).
		s.isOver(number)
		if _, err := s.finish(ctx, number); err != nil {
			return nil, err
		}
		return nil, ErrTimedOut
	case <-s.over:
		return nil, s.ended()
	}
}

// usable returns why a request can't hold or wait any more. To be called with s.mu.
func (s *session) usable(number uint64) error {
	_, isOpen := s.unanswered[number]
	_, isKnown := s.known[number]
	switch {
	case s.err != nil:
		return s.err
	case !isOpen || isKnown:
		return errBroken
	}
	return nil
}

// hold makes a guard of a grant, which does not renew the lease. To be called with s.mu.
func (s *session) hold(granted grant) (*Guard, error) {
	if err := s.usable(granted.Request); err != nil {
		return nil, err
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

// abandon finishes a request in the background: it is released, leaves the queue, or never begins. A refusal does not
// end that: as long as the session lives, the request would.
func (s *session) abandon(number uint64) {
	s.isOver(number)
	go func() {
		for failed := 0; ; failed++ {
			if _, err := s.finish(context.Background(), number); err == nil {
				return
			}
			select {
			case <-time.After(backoff(failed)):
			case <-s.over:
				return
			}
		}
	}()
}

// finish releases a request or leaves the queue, and returns how the request has ended.
func (s *session) finish(ctx context.Context, number uint64) (end string, err error) {
	s.mu.Lock()
	doneThrough, err := s.doneThrough(), s.err
	s.mu.Unlock()
	if err != nil {
		return "", err
	}
	path := "/v1/sessions/" + itoa(s.id) + "/requests/" + itoa(number) +
		"?done_through=" + strconv.FormatUint(doneThrough, 10)
	var deleted finished
	if err := s.call(ctx, http.MethodDelete, path, nil, &deleted); err != nil {
		return "", err
	}
	s.answered(number)
	return deleted.End, nil
}

func itoa(number uint64) string { return strconv.FormatUint(number, 10) }
