package lockkeeper

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"
)

// Lock says what to acquire. Its methods that return a *Lock change and return it.
type Lock struct {
	client  *Client
	names   []string
	mode    string
	permits uint32
	subtree bool
	closed  time.Duration
	value   string
	most    *uint32
}

// Also acquires these locks together with the first one: all or none.
func (l *Lock) Also(names ...string) *Lock {
	l.names = append(l.names, names...)
	return l
}

// Subtree also covers everything below the names: that of "a" covers "a/b".
func (l *Lock) Subtree() *Lock {
	l.subtree = true
	return l
}

// KeepClosed keeps the lock closed for so long after the hold.
func (l *Lock) KeepClosed(after time.Duration) *Lock {
	l.closed = after
	return l
}

// Value publishes a value with the hold: at most 4,096 bytes of text.
func (l *Lock) Value(value string) *Lock {
	l.value = value
	return l
}

// MaxWaiters waits only if fewer requests than most wait for each of the names: ErrBusy otherwise.
func (l *Lock) MaxWaiters(most uint32) *Lock {
	l.most = &most
	return l
}

// Acquire waits for the lock until ctx ends. The request then leaves the queue in the background, also if it is granted
// just then. ErrLost: the session has ended meanwhile; the position in the queue is lost.
func (l *Lock) Acquire(ctx context.Context) (*Guard, error) { return l.acquire(ctx, ctx) }

// TryAcquire does not wait for the lock: ErrBusy. It gives up after 10 s if the service does not answer.
func (l *Lock) TryAcquire(ctx context.Context) (*Guard, error) {
	ctx, cancel := context.WithTimeout(ctx, tryPatience)
	defer cancel()
	return l.acquire(ctx, nil)
}

// AcquireWithin waits for the lock for so long at most: ErrTimedOut, when the service has answered that the request
// has left the queue. It waits up to 10 s longer for answers: ErrUnreachable.
func (l *Lock) AcquireWithin(ctx context.Context, within time.Duration) (*Guard, error) {
	patience, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	limited, cancelAll := context.WithTimeout(ctx, within+tryPatience)
	defer cancelAll()
	guard, err := l.acquire(limited, patience)
	switch {
	case err == ErrTimedOut:
		err = fmt.Errorf("%w: %s, within %v", ErrTimedOut, strings.Join(l.names, ", "), within)
	case errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
		err = unreachable(limited, err)
	}
	return guard, err
}

func (l *Lock) acquire(ctx, patience context.Context) (*Guard, error) {
	session, err := l.client.live(ctx)
	if err != nil {
		return nil, err
	}
	return session.acquire(ctx, l, patience)
}

func (l *Lock) path() string {
	segments := strings.Split(l.names[0], "/")
	for i, segment := range segments {
		segments[i] = url.PathEscape(segment)
	}
	return "/v1/locks/" + strings.Join(segments, "/")
}

func (l *Lock) body(session, request, doneThrough uint64, wait bool) any {
	body := struct {
		Session     uint64   `json:"session"`
		Request     uint64   `json:"request"`
		DoneThrough uint64   `json:"done_through"`
		Mode        string   `json:"mode"`
		Permits     *uint32  `json:"permits,omitempty"`
		Subtree     bool     `json:"subtree,omitempty"`
		Also        []string `json:"also,omitempty"`
		Wait        bool     `json:"wait,omitempty"`
		Poll        *int64   `json:"poll_ms,omitempty"`
		MaxWaiters  *uint32  `json:"max_waiters,omitempty"`
		KeepClosed  int64    `json:"keep_closed_ms,omitempty"`
		Value       string   `json:"value,omitempty"`
	}{Session: session, Request: request, DoneThrough: doneThrough, Mode: l.mode, Subtree: l.subtree, Also: l.names[1:],
		Wait: wait, KeepClosed: l.closed.Milliseconds(), Value: l.value}
	if l.permits > 0 {
		body.Permits = &l.permits
	}
	if wait {
		// The session's keep-alive waits for all of its requests.
		body.Poll, body.MaxWaiters = new(int64), l.most
	}
	return body
}
