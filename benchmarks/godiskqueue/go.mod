module aiodq.example/godiskqueue

go 1.17

require github.com/nsqio/go-diskqueue v1.1.0
