//go:build postgres

package fence

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"testing"

	_ "github.com/lib/pq"
)

// The server, with the fence's schema, is that of FENCE_POSTGRES (a URL).
func open(t *testing.T) *sql.DB {
	db, err := sql.Open("postgres", os.Getenv("FENCE_POSTGRES"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

// in runs a check in a transaction, which is committed if the check lets it through.
func in(t *testing.T, db *sql.DB, check func(context.Context, Tx) error) error {
	ctx := context.Background()
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	if err := check(ctx, tx); err != nil {
		return err
	}
	return tx.Commit()
}

func TestOlderTokensAreRefused(t *testing.T) {
	db := open(t)
	enter := func(resource string, token uint64, hold Hold) error {
		return in(t, db, func(ctx context.Context, tx Tx) error { return Enter(ctx, tx, resource, token, hold) })
	}
	write := func(resource string, token uint64, hold Hold) error {
		return in(t, db, func(ctx context.Context, tx Tx) error { return Write(ctx, tx, resource, token, hold) })
	}
	once := func(resource string, token uint64) error {
		return in(t, db, func(ctx context.Context, tx Tx) error { return Once(ctx, tx, resource, token, Exclusive) })
	}
	for _, step := range []struct {
		name     string
		err      error
		expected error
	}{
		{"the first", enter("go/orders", 7, Exclusive), nil},
		{"a newer one", enter("go/orders", 9, Exclusive), nil},
		{"the older one writes", write("go/orders", 7, Exclusive), ErrStale},
		{"the older one enters", enter("go/orders", 7, Exclusive), ErrStale},
		{"the newest writes", write("go/orders", 9, Exclusive), nil},
		{"a permit", enter("go/pool", 3, Permit(0)), nil},
		{"another slot", enter("go/pool", 2, Permit(1)), nil},
		{"the same slot, older", enter("go/pool", 2, Permit(0)), ErrStale},
		{"a reader", enter("go/report", 4, Shared), nil},
		{"once", once("go/payout", 5), nil},
		{"twice", once("go/payout", 5), ErrRepeated},
		{"no token", enter("go/orders", 0, Exclusive), ErrNotFenced},
	} {
		if !errors.Is(step.err, step.expected) {
			t.Errorf("%s: %v was to come, and not: %v", step.name, step.expected, step.err)
		}
	}
	// The marks that the Rust fence has left.
	if err := enter("rust/orders", 41, Exclusive); !errors.Is(err, ErrStale) {
		t.Errorf("the fence in Rust has let 42 through: %v", err)
	}
}
