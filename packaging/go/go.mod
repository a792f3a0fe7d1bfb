module github.com/routecap/routecap/packaging/go

go 1.24

require golang.org/x/mod v0.27.0 // indirect
