# Every way to build, check and measure millrace. `make help` lists them.
#
# Needs Go, make and git; `race` also needs a C compiler. Tools and test servers
# are built once into a cache outside the checkout, which `make clean` keeps.

SHELL         := bash
.SHELLFLAGS   := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS     += --no-builtin-rules --no-print-directory

## Where things are built

CACHE   := $(or $(MILLRACE_CACHE),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/millrace)
GO      ?= go
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)

# A tool is found under the hash of what decides its content.
TOOLS_KEY := $(shell { $(GO) env GOVERSION; cat deploy/tools/go.mod deploy/tools/go.sum; } | cksum | cut -d' ' -f1)
PROTO_KEY := $(shell { $(GO) env GOVERSION; grep -F 'google.golang.org/protobuf ' go.mod; } | cksum | cut -d' ' -f1)
TOOLS     := $(CACHE)/tools/$(TOOLS_KEY)
PROTO_BIN := $(CACHE)/tools/protoc-gen-go-$(PROTO_KEY)

GOLANGCI_LINT := $(TOOLS)/golangci-lint
BUF           := $(TOOLS)/buf
GOVULNCHECK   := $(TOOLS)/govulncheck
BENCHSTAT     := $(TOOLS)/benchstat
PROTOC_GEN_GO := $(PROTO_BIN)/protoc-gen-go

## What may be set on the command line

PKG          ?= ./...
TEST_TIMEOUT ?= 20m
TEST_FLAGS   ?=
RACE_PKG     ?= ./shared/...
BENCH        ?= .
BENCHTIME    ?= 1x
BENCH_PKG    ?= ./shared/... ./services/...
FUZZTIME     ?= 10s
ROUNDS       ?= 20
AGAINST      ?= $(shell $(BASELINE))

# The wire is compared with the newest release; before the first one, with what
# has landed; in a clone that has neither, with nothing.
BASELINE = git describe --tags --abbrev=0 --match 'v*' 2>/dev/null \
	|| git rev-parse --verify --quiet origin/main 2>/dev/null || echo none

##@ General

.PHONY: help
help: ## This list.
	@awk 'BEGIN { FS = ":.*## "; print "usage: make TARGET [NAME=value]" } \
		/^##@ / { printf "\n%s\n", substr($$0, 5) } \
		/^[a-z][a-z-]*:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

##@ Build

.PHONY: build
build: ## The one binary, static: bin/millrace.
	@echo "building bin/millrace $(VERSION)"
	@CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w -X main.version=$(VERSION)' -o bin/millrace ./services/millrace

.PHONY: devcluster
devcluster: ## The API server for tests and demo, into the cache (about 5 minutes, once).
	@deploy/devcluster/build

.PHONY: generate
generate: $(BUF) $(PROTOC_GEN_GO) ## Everything generated: the Go of proto/.
	@echo "generating proto/"
	@cd proto && PATH="$(PROTO_BIN):$$PATH" $(BUF) generate

.PHONY: clean
clean: ## Removes bin/ and test results; keeps the cache of tools and servers.
	@rm -rf bin
	@$(GO) clean -testcache

##@ Tools, built on first use from deploy/tools/go.mod

.PHONY: tools
tools: $(GOLANGCI_LINT) $(BUF) $(GOVULNCHECK) $(BENCHSTAT) $(PROTOC_GEN_GO) ## All of them now, instead of on first use.

# Built beside its final name and moved, so that a build cut short leaves nothing.
define build_tool
	@echo "building tool $(notdir $@) (once)"
	@mkdir -p $(@D)
	@CGO_ENABLED=0 $(GO) build $(1) -o $@.$$$$ $(2) && mv $@.$$$$ $@
endef

$(GOLANGCI_LINT): ; $(call build_tool,-C deploy/tools,github.com/golangci/golangci-lint/v2/cmd/golangci-lint)
$(BUF):           ; $(call build_tool,-C deploy/tools,github.com/bufbuild/buf/cmd/buf)
$(GOVULNCHECK):   ; $(call build_tool,-C deploy/tools,golang.org/x/vuln/cmd/govulncheck)
$(BENCHSTAT):     ; $(call build_tool,-C deploy/tools,golang.org/x/perf/cmd/benchstat)
$(PROTOC_GEN_GO): ; $(call build_tool,,google.golang.org/protobuf/cmd/protoc-gen-go)
