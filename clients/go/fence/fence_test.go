package fence

import (
	"context"
	"database/sql"
	"errors"
	"testing"
)

// The check would be a transaction of its own, and protect nothing.
func TestPoolIsNoTransaction(t *testing.T) {
	if err := Enter(context.Background(), new(sql.DB), "go/orders", 7, Exclusive); !errors.Is(err, ErrNotFenced) {
		t.Fatal(err)
	}
}
