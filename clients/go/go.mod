module github.com/lockkeeper/lockkeeper/clients/go

go 1.19
