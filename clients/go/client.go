// Package lockkeeper is a client of Lockkeeper's lock service, by HTTP/JSON and with the standard library only.
//
//	client, err := lockkeeper.Connect(ctx, "http://127.0.0.1:5627", lockkeeper.Options{})
//	...
//	defer client.Close(ctx)
//	guard, err := client.Mutex("orders/42").Acquire(ctx)
//	...
//	defer guard.Release(ctx) // also if ctx has ended
//	work, stop := guard.Context(ctx) // cancelled if the lock is lost
//	defer stop()
//	store(work, guard.Token()) // the resource refuses older tokens
//
// Reading order: nodes.go (one call, at any node), session.go (the session and its lease), requests.go (its numbered
// requests), lock.go and guard.go (what users see). The calls are described in docs/http.md.
package lockkeeper

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"
)

// The reasons for which a lock is not acquired, or not held any more. Errors wrap them: compare with errors.Is.
// Other refusals of the service are a [*Problem].
var (
	// ErrBusy: the lock is not free, and the call was not to wait, or as many wait already as Lock.MaxWaiters says.
	ErrBusy = errors.New("the lock is busy")
	// ErrTimedOut: the lock was not free within the time of AcquireWithin.
	ErrTimedOut = errors.New("the lock was not free in time")
	// ErrLost: the hold, or the session with all its requests, has ended. Stop what you do under the lock.
	ErrLost = errors.New("the lock is lost")
	// ErrUnreachable: no node has answered, or none as the service does. Whether the call had an effect is unknown.
	ErrUnreachable = errors.New("no node of the lock service answers")
	// ErrClosed: the client was closed.
	ErrClosed = errors.New("the client is closed")
)

// Limits of the service on Options.TTL.
const (
	minTTL = time.Second
	maxTTL = time.Hour
)

const (
	// tryPatience is how long TryAcquire waits for an answer of the service.
	tryPatience = 10 * time.Second
	// lastPatience is how long Release and Close wait for one if their context has ended before.
	lastPatience = 2 * time.Second
)

// Options of a client. The zero value is valid.
type Options struct {
	// TTL is how long the client's locks outlive it, or the last answer of the service: 1 s to 1 h; 0 is 10 s.
	TTL time.Duration
	// LockDelay is how long its locks stay closed if its session expires.
	LockDelay time.Duration
	// Label shows people who holds a lock: at most 256 bytes.
	Label string
	// HTTP sends the calls, for example with TLS certificates in its Transport. It needs no Timeout, and one below
	// TTL/2 ends calls that wait. nil: a client of its own.
	HTTP *http.Client
	// Token is sent as a bearer token, if it is not empty.
	Token string
}

// Client has one session at the service, and opens another one when that has ended. It may be used by many goroutines.
type Client struct {
	nodes   *nodes
	options Options
	// closed is closed by the first Close.
	closed  chan struct{}
	closing sync.Once
	// opening is a mutex of capacity 1 for `session`.
	opening chan struct{}
	session *session
}

// Connect opens a session at a node. addresses are those of the nodes, with commas between them, for example
// "http://10.0.0.1:5627,http://10.0.0.2:5627": any of them answers.
func Connect(ctx context.Context, addresses string, options Options) (*Client, error) {
	if options.TTL == 0 {
		options.TTL = 10 * time.Second
	}
	if options.TTL < minTTL || options.TTL > maxTTL {
		return nil, fmt.Errorf("Options.TTL is %v; %v to %v are allowed", options.TTL, minTTL, maxTTL)
	}
	if options.HTTP == nil {
		transport := http.DefaultTransport.(*http.Transport).Clone()
		// A call of each goroutine that uses the client at a time has its own connection.
		transport.MaxIdleConns, transport.MaxIdleConnsPerHost = 0, 1024
		options.HTTP = &http.Client{Transport: transport}
	}
	nodes, err := newNodes(addresses, options)
	if err != nil {
		return nil, err
	}
	c := &Client{nodes: nodes, options: options, closed: make(chan struct{}), opening: make(chan struct{}, 1)}
	_, err = c.live(ctx)
	return c, err
}

// live returns the session, or opens one if it has ended.
func (c *Client) live(ctx context.Context) (*session, error) {
	select {
	case c.opening <- struct{}{}:
		defer func() { <-c.opening }()
	case <-ctx.Done():
		return nil, unreachable(ctx, errOthers)
	case <-c.closed:
		return nil, ErrClosed
	}
	if c.isClosed() {
		return nil, ErrClosed
	}
	if c.session != nil && c.session.ended() == nil {
		return c.session, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-c.closed:
			cancel()
		case <-ctx.Done():
		}
	}()
	session, err := openSession(ctx, c)
	switch {
	case err == nil:
		c.session = session
	case c.isClosed():
		err = ErrClosed
	}
	return session, err
}

func (c *Client) isClosed() bool {
	select {
	case <-c.closed:
		return true
	default:
		return false
	}
}

// Close ends the session: all its locks are released. If no node answers before ctx ends (2 s, if it has ended already),
// it is an ErrUnreachable, and they are released when the session expires.
func (c *Client) Close(ctx context.Context) error {
	c.closing.Do(func() { close(c.closed) })
	ctx, cancel := lasting(ctx)
	defer cancel()
	select {
	case c.opening <- struct{}{}:
		defer func() { <-c.opening }()
	case <-ctx.Done():
		return unreachable(ctx, errOthers)
	}
	if c.session == nil {
		return nil
	}
	return c.session.close(ctx)
}

// lasting returns ctx or, if it has ended, a context of lastPatience: locks are released at shutdown, too.
func lasting(ctx context.Context) (context.Context, context.CancelFunc) {
	if ctx.Err() != nil {
		return context.WithTimeout(context.Background(), lastPatience)
	}
	return context.WithCancel(ctx)
}

// Mutex is a lock that one holds at a time.
func (c *Client) Mutex(name string) *Lock { return c.lock(name, "exclusive") }

// Shared is the lock of this name, held together with others that hold it shared.
func (c *Client) Shared(name string) *Lock { return c.lock(name, "shared") }

// Semaphore is a lock that has so many permits, 1 to 65,536; 0: the number that is in force.
func (c *Client) Semaphore(name string, permits uint32) *Lock {
	lock := c.lock(name, "permit")
	lock.permits = permits
	return lock
}

// Election is an election of this name: who acquires it is the leader until its loss (Guard.Lost), and resigns with
// Guard.Release. It proclaims a value, for example its address: at most 4,096 bytes of text.
func (c *Client) Election(name, value string) *Lock { return c.Mutex(name).Value(value) }

func (c *Client) lock(name, mode string) *Lock {
	return &Lock{client: c, names: []string{name}, mode: mode}
}

// Problem is an error of the service: RFC 9457, with the codes of docs/http.md.
type Problem struct {
	Status int    `json:"status"`
	Code   string `json:"code"`
	Detail string `json:"detail"`
	// End is how the request has ended, for the code "ended".
	End string `json:"end"`
}

func (p *Problem) Error() string {
	return fmt.Sprintf("%s (%s, status %d)", strings.TrimSuffix(p.Detail, "."), p.Code, p.Status)
}

func (p *Problem) outcome() outcome {
	switch p.Status {
	case 502, 503, 504: // unavailable, deadline-exceeded
		return mayPass
	case 401, 403, 404, 421:
		return refused
	}
	return final
}

func problemCode(err error) string {
	var p *Problem
	if errors.As(err, &p) {
		return p.Code
	}
	return ""
}
