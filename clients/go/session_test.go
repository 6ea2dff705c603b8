package lockkeeper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

const nothing = `{"revoked":[],"ended":[]}`

// asked is a call that a scripted service has received.
type asked struct {
	what     string // open, poll, acquire, finish, delete
	number   uint64 // of an acquire or a finish
	attempts int    // so many equal ones, with this one
	waiting  []uint64
	known    []uint64
	gone     <-chan struct{}
}

func (a asked) knows(number uint64) bool    { return has(a.known, number) }
func (a asked) waitsFor(number uint64) bool { return has(a.waiting, number) }

func has(numbers []uint64, number uint64) bool {
	for _, n := range numbers {
		if n == number {
			return true
		}
	}
	return false
}

// scripted is a service that grants everything, except for what the test answers: (0, "") is the usual answer.
type scripted struct {
	*httptest.Server
	answer func(asked) (int, string)
	mu     sync.Mutex
	counts map[string]int
	stop   chan struct{}
}

func newScripted(t *testing.T, answer func(asked) (int, string)) *scripted {
	s := &scripted{answer: answer, counts: map[string]int{}, stop: make(chan struct{})}
	s.Server = httptest.NewServer(s)
	t.Cleanup(func() {
		close(s.stop)
		s.CloseClientConnections()
		s.Close()
	})
	return s
}

// count returns how many calls like "finish 1" have arrived.
func (s *scripted) count(call string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counts[call]
}

func (s *scripted) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Request uint64   `json:"request"`
		Poll    int64    `json:"poll_ms"`
		Waiting []uint64 `json:"waiting"`
		Known   []uint64 `json:"known"`
	}
	text, _ := io.ReadAll(r.Body)
	_ = json.Unmarshal(text, &body)
	call := asked{number: body.Request, waiting: body.Waiting, known: body.Known, gone: r.Context().Done()}
	status, usual := 200, nothing
	switch path := r.URL.Path; {
	case path == "/v1/sessions":
		call.what, usual = "open", `{"session":1}`
	case strings.HasSuffix(path, "/keep-alive"):
		call.what = "poll"
	case strings.HasPrefix(path, "/v1/locks/"):
		call.what, usual = "acquire", fmt.Sprintf(`{"state":"held","token":%d,"revoked":[],"ended":[]}`, 100+body.Request)
	case strings.Contains(path, "/requests/"):
		_, _ = fmt.Sscanf(path, "/v1/sessions/1/requests/%d", &call.number)
		call.what, usual = "finish", `{"end":"released","revoked":[],"ended":[]}`
	default:
		call.what, status, usual = "delete", 204, ""
	}
	s.mu.Lock()
	name := fmt.Sprint(call.what, " ", call.number)
	s.counts[name]++
	call.attempts = s.counts[name]
	s.mu.Unlock()
	if answered, answer := s.answer(call); answered != 0 {
		status, usual = answered, answer
	} else if call.what == "poll" {
		select {
		case <-time.After(time.Duration(body.Poll) * time.Millisecond):
		case <-r.Context().Done():
		case <-s.stop:
		}
	}
	if status == 302 {
		w.Header().Set("Location", usual)
	}
	w.WriteHeader(status)
	_, _ = io.WriteString(w, usual)
}

func queued() (int, string) { return 202, `{"state":"queued","position":0,"revoked":[],"ended":[]}` }

func problem(status int, code string) (int, string) {
	return status, fmt.Sprintf(`{"status":%d,"code":%q,"detail":"it is refused","end":"gone"}`, status, code)
}

// The two ways in which a poll names request 1.
var breaks = map[string]string{
	"revoked": `{"revoked":[1],"ended":[]}`,
	"ended":   `{"revoked":[],"ended":[{"request":1,"end":"broken"}]}`,
}

func TestWaiterWhoseGrantIsBrokenAsksAnew(t *testing.T) {
	for name, answer := range breaks {
		answer := answer
		t.Run(name, func(t *testing.T) {
			service := newScripted(t, func(a asked) (int, string) {
				switch {
				case a.what == "acquire" && a.number == 1:
					return queued()
				case a.what == "poll" && a.waitsFor(1):
					return 200, answer
				}
				return 0, ""
			})
			guard, err := connect(t, service.URL, time.Hour).Mutex("a").Acquire(within(t))
			if held(t, guard, err); guard.Token() != 102 {
				t.Fatal("the broken request is held: ", guard.Token())
			}
			until(t, "the broken request is finished", func() bool { return service.count("finish 1") > 0 })
		})
	}
}

// P5: the answer to the acquire arrives after that of the poll, on another connection.
func TestGrantIsRefusedIfItsBreakCameFirst(t *testing.T) {
	for name, answer := range breaks {
		name, answer := name, answer
		t.Run(name, func(t *testing.T) {
			isSent, isTold := make(chan struct{}), make(chan struct{})
			var told sync.Once
			service := newScripted(t, func(a asked) (int, string) {
				switch {
				case a.what == "acquire" && a.number == 1:
					close(isSent)
					<-isTold
				case a.what == "poll" && a.knows(1), a.what == "finish" && a.number == 1:
					told.Do(func() { close(isTold) })
				case a.what == "poll":
					select {
					case <-isSent:
						return 200, answer
					case <-a.gone:
					}
				}
				return 0, ""
			})
			client := connect(t, service.URL, time.Hour)
			guard, err := client.Mutex("a").Acquire(within(t))
			if held(t, guard, err); guard.Token() != 102 {
				t.Fatal("the broken request is held: ", guard.Token())
			}
			until(t, "the broken request is finished", func() bool { return service.count("finish 1") > 0 })
			release(t, guard)
			// A break that is named late, after the finish, is no request's.
			client.session.broken(2, false, ErrLost)
			until(t, "nothing is left", func() bool {
				client.session.mu.Lock()
				defer client.session.mu.Unlock()
				return len(client.session.known) == 0 && len(client.session.unanswered) == 0
			})
		})
	}
}

func TestFinishIsRepeatedUntilItIsAnswered(t *testing.T) {
	for _, isLost := range []bool{false, true} {
		isLost, isHeld := isLost, make(chan struct{})
		service := newScripted(t, func(a asked) (int, string) {
			switch {
			case a.what == "finish" && a.attempts < 4:
				return problem(403, "permission-denied")
			case a.what == "poll" && isLost && !a.knows(1):
				select {
				case <-isHeld:
					return 200, breaks["revoked"]
				case <-a.gone:
				}
			}
			return 0, ""
		})
		client := connect(t, service.URL, time.Second)
		guard, err := client.Mutex("a").Acquire(within(t))
		held(t, guard, err)
		close(isHeld)
		if isLost {
			<-guard.Lost()
		}
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		switch err := guard.Release(ended); {
		case isLost:
			is(t, err, ErrLost)
		case problemCode(err) != "permission-denied":
			t.Fatal(err)
		}
		until(t, "it is finished", func() bool { return service.count("finish 1") == 4 })
	}
}

func TestCrowdOfCancelledAcquiresHasFewCalls(t *testing.T) {
	const crowd = 3 * finishesMax
	var mu sync.Mutex
	now, most, pass := 0, 0, make(chan struct{})
	count := func(by int) {
		mu.Lock()
		defer mu.Unlock()
		if now += by; now > most {
			most = now
		}
	}
	service := newScripted(t, func(a asked) (int, string) {
		switch {
		case a.what == "acquire" && a.number <= crowd:
			return queued()
		case a.what == "finish":
			count(1)
			select {
			case <-pass:
			case <-a.gone:
			}
			count(-1)
		}
		return 0, ""
	})
	client := connect(t, service.URL, time.Hour)
	ctx, cancel := context.WithCancel(within(t))
	var tasks sync.WaitGroup
	for i := 0; i < crowd; i++ {
		tasks.Add(1)
		go func() {
			defer tasks.Done()
			if _, err := client.Mutex("a").Acquire(ctx); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}()
	}
	until(t, "all wait", func() bool {
		client.session.mu.Lock()
		defer client.session.mu.Unlock()
		return len(client.session.waiting) == crowd
	})
	cancel()
	tasks.Wait()
	until(t, "as many as may", func() bool { mu.Lock(); defer mu.Unlock(); return now >= finishesMax })
	guard, err := client.Mutex("a").Acquire(within(t))
	held(t, guard, err)
	close(pass)
	release(t, guard)
	until(t, "all are finished", func() bool {
		client.session.mu.Lock()
		defer client.session.mu.Unlock()
		return len(client.session.unanswered) == 0
	})
	if most > finishesMax+1 { // and the release
		t.Fatal(most, " calls at a time")
	}
}

func TestProgramWhoseContextHasEndedReleasesItsLocks(t *testing.T) {
	client := connect(t, node(t), time.Hour)
	ctx, cancel := context.WithCancel(within(t))
	for _, name := range []string{"go/ended/a", "go/ended/b"} {
		guard, err := client.Mutex(name).Acquire(ctx)
		held(t, guard, err)
		if name == "go/ended/a" {
			cancel()
			if err := guard.Release(ctx); err != nil {
				t.Fatal(err)
			}
			untilCounts(t, name, 0, 0)
			ctx, cancel = context.WithCancel(within(t))
		}
	}
	cancel()
	if err := client.Close(ctx); err != nil {
		t.Fatal(err)
	}
	untilCounts(t, "go/ended/b", 0, 0)
}

// P5: a proxy, or a node that refuses this client, is no answer; another node is asked.
func TestOnlyAnswersOfTheServiceRenewTheLease(t *testing.T) {
	elsewhere := newScripted(t, func(a asked) (int, string) {
		t.Error("a redirect was followed, with the secret")
		return 0, ""
	})
	for name, answer := range map[string]func() (int, string){
		"redirect":     func() (int, string) { return 302, elsewhere.URL + "/v1/sessions/1/keep-alive" },
		"empty":        func() (int, string) { return 200, "" },
		"no content":   func() (int, string) { return 204, "" },
		"page":         func() (int, string) { return 200, "<html>" },
		"other object": func() (int, string) { return 200, "{}" },
		"proxy":        func() (int, string) { return 404, "<html>" },
		"token":        func() (int, string) { return problem(401, "unauthenticated") },
		"access file":  func() (int, string) { return problem(403, "permission-denied") },
		"misdirected":  func() (int, string) { return problem(421, "misdirected") },
	} {
		answer := answer
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bad := newScripted(t, func(a asked) (int, string) {
				if a.what == "poll" {
					return answer()
				}
				return 0, ""
			})
			good := newScripted(t, func(asked) (int, string) { return 0, "" })
			alone, both := connect(t, bad.URL, time.Second), connect(t, bad.URL+","+good.URL, time.Second)
			lost, err := alone.Mutex("a").Acquire(within(t))
			held(t, lost, err)
			kept, err := both.Mutex("a").Acquire(within(t))
			held(t, kept, err)
			select {
			case <-lost.Lost():
			case <-time.After(deadline):
				t.Fatal("the lease was renewed")
			}
			until(t, "the session is deleted", func() bool { return bad.count("delete 0") > 0 })
			begun := now()
			until(t, "two ttls", func() bool { return now() > begun+2*time.Second || kept.Check() != nil })
			if err := kept.Check(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// P12: it may have been granted when the time was over.
func TestTimedOutIsWhatTheServiceHasAnswered(t *testing.T) {
	service := newScripted(t, func(a asked) (int, string) {
		switch a.what {
		case "acquire":
			return queued()
		case "finish":
			return problem(503, "unavailable")
		}
		return 0, ""
	})
	client := connect(t, service.URL, time.Hour)
	ctx, cancel := context.WithTimeout(within(t), 300*time.Millisecond)
	defer cancel()
	_, err := client.Mutex("a").AcquireWithin(ctx, time.Millisecond)
	is(t, err, ErrUnreachable)
}

func TestCloseEndsAnOpenThatIsUnderWay(t *testing.T) {
	isOpening := make(chan struct{})
	service := newScripted(t, func(a asked) (int, string) {
		if a.what == "open" && a.attempts == 2 {
			close(isOpening)
			<-a.gone
		}
		return 0, ""
	})
	client := connect(t, service.URL, time.Hour)
	client.session.end(ErrLost)
	acquired := make(chan error)
	go func() {
		_, err := client.Mutex("a").Acquire(context.Background())
		acquired <- err
	}()
	<-isOpening
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	_, err := client.Mutex("a").Acquire(ctx)
	is(t, err, ErrUnreachable)
	closed := make(chan error)
	go func() { closed <- client.Close(within(t)) }()
	select {
	case err := <-closed:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(deadline):
		t.Fatal("Close waits for the open")
	}
	is(t, <-acquired, ErrClosed)
}

// The process was stopped for longer than the ttl; then the answer to a call is read first.
func TestAnswerAfterTheDeadlineRevivesNothing(t *testing.T) {
	service := newScripted(t, func(asked) (int, string) { return 0, "" })
	for _, first := range []string{"answer", "check"} {
		client := connect(t, service.URL, time.Hour)
		guard, err := client.Mutex("a").Acquire(within(t))
		held(t, guard, err)
		client.session.mu.Lock()
		client.session.deadline = now()
		client.session.mu.Unlock()
		if first == "check" {
			is(t, guard.Check(), ErrLost)
		}
		client.session.renew(now())
		is(t, guard.Check(), ErrLost)
		<-guard.Lost()
		is(t, guard.Release(within(t)), ErrLost)
	}
}

func TestSessionThatHasEndedAtTheServiceIsALoss(t *testing.T) {
	client := connect(t, node(t), time.Hour)
	guard, err := client.Mutex("go/gone").Acquire(within(t))
	held(t, guard, err)
	waited := make(chan error)
	go func() {
		_, err := client.Mutex("go/gone").Acquire(within(t))
		waited <- err
	}()
	untilCounts(t, "go/gone", 1, 1)
	if err := client.session.delete(within(t)); err != nil {
		t.Fatal(err)
	}
	<-guard.Lost()
	is(t, guard.Check(), ErrLost)
	is(t, <-waited, ErrLost)
	is(t, guard.Release(within(t)), ErrLost)
	guard, err = client.Mutex("go/gone").Acquire(within(t))
	release(t, held(t, guard, err))
}

// delayed passes acquires on late, and notes their order.
type delayed struct {
	http.RoundTripper
	mu      sync.Mutex
	numbers []uint64
}

func (d *delayed) RoundTrip(r *http.Request) (*http.Response, error) {
	if strings.HasPrefix(r.URL.Path, "/v1/locks/") {
		body, _ := r.GetBody()
		var acquire struct{ Request uint64 }
		_ = json.NewDecoder(body).Decode(&acquire)
		time.Sleep(time.Duration(rand.Intn(3_000)) * time.Microsecond)
		d.mu.Lock()
		d.numbers = append(d.numbers, acquire.Request)
		d.mu.Unlock()
	}
	return d.RoundTripper.RoundTrip(r)
}

func TestAcquiresAreSentInTheOrderOfTheirNumbers(t *testing.T) {
	service := newScripted(t, func(a asked) (int, string) {
		if a.what == "acquire" && a.number == 1 {
			return problem(410, "ended") // it was overtaken all the same
		}
		return 0, ""
	})
	transport := &delayed{RoundTripper: http.DefaultTransport.(*http.Transport).Clone()}
	client, err := Connect(within(t), service.URL, Options{HTTP: &http.Client{Transport: transport}})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close(within(t))
	var tasks sync.WaitGroup
	for i := 0; i < 32; i++ {
		tasks.Add(1)
		go func() {
			defer tasks.Done()
			if _, err := client.Mutex("a").Acquire(within(t)); err != nil {
				t.Error(err)
			}
		}()
	}
	tasks.Wait()
	for i, number := range transport.numbers {
		if number != uint64(i+1) {
			t.Fatal(transport.numbers)
		}
	}
	if len(transport.numbers) != 33 {
		t.Fatal(transport.numbers)
	}
}

// The later poll names a request, and arrives first: the earlier one then waits, without it.
func TestGrantIsNoticedIfTwoPollsArriveSwapped(t *testing.T) {
	isSent, isThird := make(chan struct{}), make(chan struct{})
	var mu sync.Mutex
	polls := 0
	service := newScripted(t, func(a asked) (int, string) {
		switch a.what {
		case "acquire":
			<-isSent
			return queued()
		case "poll":
			mu.Lock()
			polls++
			number := polls
			mu.Unlock()
			switch number {
			case 1:
				close(isSent)
				select {
				case <-isThird:
				case <-a.gone:
					mu.Lock()
					defer mu.Unlock()
					if polls < 3 {
						t.Error("no other poll was sent before the first one was given up")
					}
				}
				return 200, nothing
			case 2:
				return 200, nothing
			case 3:
				close(isThird)
				return 200, `{"granted":[{"request":1,"token":7}],"revoked":[],"ended":[]}`
			}
		}
		return 0, ""
	})
	guard, err := connect(t, service.URL, time.Hour).Mutex("a").Acquire(within(t))
	held(t, guard, err)
}

func TestCertificateThatIsNotTrustedIsAnError(t *testing.T) {
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	defer server.Close()
	ctx := within(t)
	_, err := Connect(ctx, server.URL, Options{})
	is(t, err, ErrUnreachable)
	if ctx.Err() != nil || !strings.Contains(err.Error(), "certificate") {
		t.Fatal(err)
	}
}
