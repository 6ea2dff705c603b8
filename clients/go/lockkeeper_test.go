package lockkeeper

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"math/rand"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// deadline bounds every wait of a test.
const deadline = 60 * time.Second

// node is the address of a real node: LOCKKEEPER_HTTP.
func node(t testing.TB) string {
	address := os.Getenv("LOCKKEEPER_HTTP")
	if address == "" {
		t.Fatal("LOCKKEEPER_HTTP is to have the address of a node: `lockkeeper serve --data DIR`, then http://127.0.0.1:5627")
	}
	return address
}

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	t.Cleanup(cancel)
	return ctx
}

func connect(t testing.TB, addresses string, ttl time.Duration) *Client {
	client, err := Connect(within(t), addresses, Options{TTL: ttl, Label: t.Name()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close(within(t)) })
	return client
}

func held(t testing.TB, guard *Guard, err error) *Guard {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	if left := guard.ValidFor(); left <= 0 || guard.Token() == 0 {
		t.Fatalf("valid for %v, token %d", left, guard.Token())
	}
	return guard
}

func is(t testing.TB, err, expected error) {
	t.Helper()
	if !errors.Is(err, expected) {
		t.Fatalf("%v was to come, and not: %v", expected, err)
	}
}

func release(t testing.TB, guard *Guard) {
	t.Helper()
	if err := guard.Release(within(t)); err != nil {
		t.Fatal(err)
	}
}

// counts returns how many hold a lock, and how many wait for it.
func counts(t testing.TB, name string) (holds, waiters int) {
	response, err := http.Get(node(t) + "/v1/locks/" + name)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var lock struct {
		Holds   int `json:"hold_count"`
		Waiters int `json:"waiter_count"`
	}
	if err := json.NewDecoder(response.Body).Decode(&lock); err != nil {
		t.Fatal(err)
	}
	return lock.Holds, lock.Waiters
}

func until(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(deadline); !holds(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not in time: %s", what)
		}
	}
}

func untilCounts(t testing.TB, name string, holds, waiters int) {
	t.Helper()
	until(t, name, func() bool { h, w := counts(t, name); return h == holds && w == waiters })
}

func TestLockIsHandedOverAndTokensRise(t *testing.T) {
	one, two := connect(t, node(t), 0), connect(t, node(t), 0)
	ctx := within(t)
	guard, err := one.Mutex("go/a").Acquire(ctx)
	first := held(t, guard, err)
	_, err = two.Mutex("go/a").TryAcquire(ctx)
	is(t, err, ErrBusy)
	_, err = two.Mutex("go/a").AcquireWithin(ctx, 50*time.Millisecond)
	is(t, err, ErrTimedOut)
	untilCounts(t, "go/a", 1, 0)

	next := make(chan *Guard)
	go func() {
		guard, _ := two.Mutex("go/a").MaxWaiters(1).Acquire(ctx)
		next <- guard
	}()
	untilCounts(t, "go/a", 1, 1)
	_, err = two.Mutex("go/a").MaxWaiters(1).Acquire(ctx)
	is(t, err, ErrBusy)
	_, err = two.Mutex("go/a").MaxWaiters(1).TryAcquire(ctx)
	is(t, err, ErrBusy)
	release(t, first)
	second := held(t, <-next, nil)
	if second.Token() <= first.Token() {
		t.Fatal("tokens rise (P2)")
	}
	is(t, first.Check(), ErrLost)
	release(t, second)
	untilCounts(t, "go/a", 0, 0)
}

func TestEveryWayToHold(t *testing.T) {
	one, two := connect(t, node(t), 0), connect(t, node(t), 0)
	ctx := within(t)
	for _, client := range []*Client{one, two} {
		guard, err := client.Shared("go/report").TryAcquire(ctx)
		held(t, guard, err)
		guard, err = client.Semaphore("go/pool", 2).TryAcquire(ctx)
		if slots := held(t, guard, err).Slots(); len(slots) != 1 || slots[0].Permits != 2 {
			t.Fatal(slots)
		}
	}
	_, err := one.Semaphore("go/pool", 2).TryAcquire(ctx)
	is(t, err, ErrBusy)
	guard, err := one.Mutex("go/tree").Also("go/other tree?").Subtree().TryAcquire(ctx)
	held(t, guard, err)
	_, err = two.Mutex("go/other tree?/leaf").TryAcquire(ctx)
	is(t, err, ErrBusy)
	leader, err := one.Election("go/leader", "10.0.0.7:80").Acquire(ctx)
	held(t, leader, err)
	_, err = two.Mutex("go/leader").TryAcquire(ctx)
	is(t, err, ErrBusy)
	_, err = two.Mutex("go//x").TryAcquire(ctx)
	if problemCode(err) != "invalid-argument" {
		t.Fatal(err)
	}
	if _, err = Connect(ctx, node(t), Options{TTL: time.Millisecond}); err == nil {
		t.Fatal("a ttl of 1 ms")
	}
	for _, address := range []string{"lockkeeper://x", "x", "", "http://x,ftp://x"} {
		if _, err = Connect(ctx, address, Options{}); err == nil {
			t.Fatal(address)
		}
	}
}

func TestCancelledAcquiresLeaveNothing(t *testing.T) {
	holder, waiter := connect(t, node(t), 0), connect(t, node(t), 0)
	guard, err := holder.Mutex("go/cancel").Acquire(within(t))
	held(t, guard, err)
	var tasks sync.WaitGroup
	for i := 0; i < 200; i++ {
		tasks.Add(1)
		go func() {
			defer tasks.Done()
			ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rand.Intn(20_000))*time.Microsecond)
			defer cancel()
			if _, err := waiter.Mutex("go/cancel").Acquire(ctx); err == nil {
				t.Error("it is held by another")
			}
		}()
	}
	tasks.Wait()
	untilCounts(t, "go/cancel", 1, 0)
	release(t, guard)
	guard, err = waiter.Mutex("go/cancel").TryAcquire(within(t))
	held(t, guard, err)
}

func TestCrowdOfOneClientExcludesItself(t *testing.T) {
	client := connect(t, node(t), 0)
	var inside [4]int32
	var last [4]uint64
	var tasks sync.WaitGroup
	for i := 0; i < 64; i++ {
		lock := i % 4
		tasks.Add(1)
		go func() {
			defer tasks.Done()
			for round := 0; round < 5; round++ {
				guard, err := client.Mutex("go/crowd/" + string(rune('a'+lock))).Acquire(within(t))
				if err != nil {
					t.Error(err)
					return
				}
				if atomic.AddInt32(&inside[lock], 1) != 1 || guard.Token() <= last[lock] {
					t.Error("two hold it, or a token that does not rise")
				}
				last[lock] = guard.Token()
				atomic.AddInt32(&inside[lock], -1)
				if err := guard.Release(within(t)); err != nil {
					t.Error(err)
				}
			}
		}()
	}
	tasks.Wait()
}

func TestBreakIsALoss(t *testing.T) {
	client := connect(t, node(t), 0)
	guard, err := client.Mutex("go/broken").Acquire(within(t))
	held(t, guard, err)
	work, stop := guard.Context(within(t))
	defer stop()
	body, _ := json.Marshal(map[string]any{"name": "go/broken", "token": guard.Token(), "reason": "test"})
	response, err := http.Post(node(t)+"/v1/break", "application/json", strings.NewReader(string(body)))
	if err != nil || response.StatusCode != 200 {
		t.Fatal(response, err)
	}
	<-work.Done()
	<-guard.Lost()
	is(t, guard.Check(), ErrLost)
	is(t, guard.Release(within(t)), ErrLost)
	untilCounts(t, "go/broken", 0, 0)
}

// proxy stands between a client and the node. It may stop passing bytes on, or drop answers.
type proxy struct {
	net.Listener
	isStalled, isCut atomic.Bool
	// drops is how many of 100 connections end instead of their next answer.
	drops atomic.Int32
}

func newProxy(t testing.TB) *proxy {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{Listener: listener}
	t.Cleanup(func() { listener.Close() })
	target := strings.TrimPrefix(node(t), "http://")
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", target)
			if err != nil {
				client.Close()
				continue
			}
			pass := func(to, from net.Conn, isAnswer bool) {
				defer to.Close()
				defer from.Close()
				buffer := make([]byte, 64<<10)
				for {
					count, err := from.Read(buffer)
					for p.isStalled.Load() && err == nil {
						time.Sleep(time.Millisecond)
					}
					if err != nil || p.isCut.Load() || (isAnswer && rand.Int31n(100) < p.drops.Load()) {
						return
					}
					if _, err := to.Write(buffer[:count]); err != nil {
						return
					}
				}
			}
			go pass(server, client, false)
			go pass(client, server, true)
		}
	}()
	return p
}

func (p *proxy) url() string { return "http://" + p.Addr().String() }

// P5: the loss is told before another can hold the lock.
func TestLossIsToldBeforeTheNextGrant(t *testing.T) {
	for _, fault := range []string{"stalled", "cut"} {
		p := newProxy(t)
		holder, next := connect(t, p.url(), time.Second), connect(t, node(t), 0)
		guard, err := holder.Mutex("go/lost/" + fault).Acquire(within(t))
		held(t, guard, err)
		granted := make(chan error)
		go func() {
			guard, err := next.Mutex("go/lost/" + fault).Acquire(within(t))
			if err == nil {
				defer guard.Release(within(t))
			}
			granted <- err
		}()
		untilCounts(t, "go/lost/"+fault, 1, 1)
		p.isStalled.Store(fault == "stalled")
		p.isCut.Store(fault == "cut")
		select {
		case <-guard.Lost():
		case <-granted:
			t.Fatal("granted to the next one first: " + fault)
		case <-time.After(deadline):
			t.Fatal("no loss")
		}
		is(t, guard.Check(), ErrLost)
		is(t, guard.Release(within(t)), ErrLost)
		if err := <-granted; err != nil {
			t.Fatal(err)
		}
		// The client goes on with a new session.
		p.isStalled.Store(false)
		p.isCut.Store(false)
		again, err := holder.Mutex("go/lost/" + fault).Acquire(within(t))
		held(t, again, err)
	}
}

func TestAnotherNodeAnswersWhenOneStalls(t *testing.T) {
	p := newProxy(t)
	client := connect(t, p.url()+","+node(t), 2*time.Second)
	guard, err := client.Mutex("go/failover").Acquire(within(t))
	held(t, guard, err)
	p.isStalled.Store(true)
	begun := now()
	until(t, "two ttls", func() bool { return now() > begun+4*time.Second || guard.Check() != nil })
	if err := guard.Check(); err != nil {
		t.Fatal(err)
	}
	release(t, guard)
}

// P7: a call without an answer is repeated, and has its effect once.
func TestLostAnswersLoseNoGrantAndLeaveNothing(t *testing.T) {
	p := newProxy(t)
	client := connect(t, p.url(), 0)
	p.drops.Store(30)
	var tasks sync.WaitGroup
	for i := 0; i < 8; i++ {
		tasks.Add(1)
		go func() {
			defer tasks.Done()
			for round := 0; round < 5; round++ {
				guard, err := client.Mutex("go/drops").Acquire(within(t))
				if err != nil {
					t.Error(err)
					return
				}
				if err := guard.Release(within(t)); err != nil {
					t.Error(err)
				}
			}
		}()
	}
	tasks.Wait()
	p.drops.Store(0)
	untilCounts(t, "go/drops", 0, 0)
}

func TestUnreachableServiceIsAnErrorInTime(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	_, err := Connect(ctx, "http://127.0.0.1:1", Options{})
	is(t, err, ErrUnreachable)
	client := connect(t, node(t), 0)
	_ = client.Close(within(t))
	_, err = client.Mutex("go/closed").TryAcquire(within(t))
	is(t, err, ErrClosed)
}

// The figures of docs/languages/go.md: go test -bench . -run none
func BenchmarkPair(b *testing.B) {
	client := connect(b, node(b), 0)
	ctx := within(b)
	for i := 0; i < b.N; i++ {
		guard, err := client.Mutex("go/bench").Acquire(ctx)
		if err != nil {
			b.Fatal(err)
		}
		if err := guard.Release(ctx); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkRawPair makes the same two calls by net/http alone.
func BenchmarkRawPair(b *testing.B) {
	client := connect(b, node(b), 0)
	s := client.session
	for i := 0; i < b.N; i++ {
		number, done := s.begin()
		text, _ := json.Marshal(client.Mutex("go/raw").body(s.id, number, done, false))
		for _, c := range []struct{ method, path, body string }{
			{"POST", "/v1/locks/go/raw", string(text)},
			{"DELETE", "/v1/sessions/" + itoa(s.id) + "/requests/" + itoa(number), ""},
		} {
			request, _ := http.NewRequest(c.method, node(b)+c.path, strings.NewReader(c.body))
			request.Header.Set("Lockkeeper-Secret", s.secret)
			request.Header.Set("Content-Type", "application/json")
			response, err := client.options.HTTP.Do(request)
			if err != nil || response.StatusCode != 200 {
				b.Fatal(response, err)
			}
			_, _ = io.Copy(io.Discard, response.Body)
			response.Body.Close()
		}
		s.answered(number)
	}
}

// BenchmarkPairs64 has 64 clients, each with a lock of its own.
func BenchmarkPairs64(b *testing.B) {
	var left atomic.Int64
	left.Store(int64(b.N))
	clients := make([]*Client, 64)
	for i := range clients {
		clients[i] = connect(b, node(b), 0)
	}
	b.ResetTimer()
	var tasks sync.WaitGroup
	for i, client := range clients {
		lock := client.Mutex("go/bench/" + itoa(uint64(i)))
		tasks.Add(1)
		go func() {
			defer tasks.Done()
			for left.Add(-1) >= 0 {
				guard, err := lock.Acquire(context.Background())
				if err == nil {
					err = guard.Release(context.Background())
				}
				if err != nil {
					b.Error(err)
				}
			}
		}()
	}
	tasks.Wait()
}
