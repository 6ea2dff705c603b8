package lockkeeper

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"sync"
	"time"
)

const (
	// unansweredMax is how many numbers done_through may lag behind. The service remembers 4,096 ended requests.
	unansweredMax = 2048
	// finishesMax bounds the calls, and so the connections, by which abandoned requests are finished at a time.
	finishesMax = 32
)

var (
	// errBroken: a request that no Guard has yet was broken, or has ended. It is made anew.
	errBroken = errors.New("the request was broken")
	// errOthers is the last error of a call that never had its turn to be sent.
	errOthers = errors.New("none; it waits for calls before it")
)

// waiter is an acquire whose request is queued.
type waiter struct {
	done  chan struct{}
	guard *Guard
	err   error
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
	if !isKnown {
		delete(s.waiting, number)
	}
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
	switch {
	case w != nil: // its acquire abandons the request
		w.err = errBroken
		close(w.done)
	case hasEnded:
		s.abandon(number)
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
		return 0, status, unreachable(ctx, errOthers)
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
		s.setOver(number)
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

// setOver forgets that a request waits or is held; its finish follows.
func (s *session) setOver(number uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.waiting, number)
	delete(s.held, number)
	s.known[number] = struct{}{}
}

// abandon finishes a request in the background: it is released, leaves the queue, or never begins. A refusal does not
// end that: as long as the session lives, the request would.
func (s *session) abandon(number uint64) {
	s.setOver(number)
	go func() {
		for failed := 0; ; failed++ {
			select {
			case s.finishing <- struct{}{}:
			case <-s.over:
				return
			}
			_, err := s.finish(context.Background(), number)
			<-s.finishing
			if err == nil {
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
	path := "/v1/sessions/" + itoa(s.id) + "/requests/" + itoa(number) + "?done_through=" + itoa(doneThrough)
	var deleted finished
	if err := s.call(ctx, http.MethodDelete, path, nil, &deleted); err != nil {
		return "", err
	}
	s.answered(number)
	return deleted.End, nil
}

func itoa(number uint64) string { return strconv.FormatUint(number, 10) }
