module github.com/segue-net/segue/integrations/go

go 1.23
