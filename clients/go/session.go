package lockkeeper

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net/http"
	"sort"
	"sync"
	"time"
)

const (
	// listMax is the most numbers that a list of a keep-alive may have.
	listMax = 4096
	// pollMax bounds the time for which a keep-alive waits: proxies close connections that are silent for long.
	pollMax = 20 * time.Second
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
	// sending is a mutex of capacity 1: held from when a number is taken until its request is written.
	sending chan struct{}
	// finishing has places for the calls of `abandon`.
	finishing chan struct{}

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
		finishing:  make(chan struct{}, finishesMax),
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
	sent, err := s.client.nodes.ask(ctx, s.over, call{method, path, s.secret, body, s.attemptLimit()}, a)
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

// attemptLimit bounds one attempt, after which another node is asked.
func (s *session) attemptLimit() time.Duration {
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
	_, err := s.client.nodes.ask(ctx, nil, call{http.MethodDelete, path, s.secret, nil, s.attemptLimit()}, nil)
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
