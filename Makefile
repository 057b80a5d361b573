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
HELM_KEY  := $(shell { $(GO) env GOVERSION; cat deploy/tools/helm/go.mod deploy/tools/helm/go.sum; } | cksum | cut -d' ' -f1)
TOOLS     := $(CACHE)/tools/$(TOOLS_KEY)
PROTO_BIN := $(CACHE)/tools/protoc-gen-go-$(PROTO_KEY)

GOLANGCI_LINT := $(TOOLS)/golangci-lint
BUF           := $(TOOLS)/buf
GOVULNCHECK   := $(TOOLS)/govulncheck
BENCHSTAT     := $(TOOLS)/benchstat
PROTOC_GEN_GO := $(PROTO_BIN)/protoc-gen-go
HELM          := $(CACHE)/tools/helm-$(HELM_KEY)/helm

## What may be set on the command line

PKG           ?= ./...
TEST_TIMEOUT  ?= 20m
TEST_FLAGS    ?=
RACE_PKG      ?= $(shell $(GO) list ./shared/... ./services/... | grep -vE '/shared/($(NO_RACE))$$|/services/millrace$$')
BENCH         ?= .
BENCHTIME     ?= 1x
BENCH_PKG     ?= $(sort $(dir $(shell grep -rlE --include='*_test.go' '^func Benchmark' ./shared ./services)))
FUZZTIME      ?= 20000x
CI_FUZZTIME   ?= 3000x
ROUNDS        ?= 20
SUITE_TIMEOUT ?= 60m
SUITE_FLAGS   ?=
AGAINST       ?= $(shell $(BASELINE))

# Rooms in which nothing runs beside anything, or only the tests' own machinery.
NO_RACE = arch|backoff|beat|clock|event|kube/kubetest|partition|protocol|tokenbucket

# How many packages are tested at a time: they wait for servers and for time more
# than they work.
TEST_LANES ?= 4

# Begun first, so that nothing waits for the longest at the end.
LONGEST = ./shared/kube/... ./services/watcher ./shared/lease

# The wire is compared with the newest release; before the first one, with what
# has landed; in a clone that has neither, with nothing.
BASELINE = git describe --tags --abbrev=0 --match 'v*' 2>/dev/null \
	|| git rev-parse --verify --quiet origin/main 2>/dev/null || echo none

##@ General

.PHONY: help
help: ## This list.
	@awk 'BEGIN { FS = ":.*## "; print "usage: make TARGET [NAME=value]" } \
		/^##@ / { printf "\n%s\n", substr($$0, 5) } \
		/^[a-z][a-z-]*:.*## / { printf "  %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

##@ Build

.PHONY: build
build: ## The one binary, static: bin/millrace.
	@echo "building bin/millrace $(VERSION)"
	@CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false -ldflags '-s -w -X main.version=$(VERSION)' -o bin/millrace ./services/millrace

.PHONY: devcluster
devcluster: ## The API server and upstream's manager for tests, into the cache (minutes, once).
	@deploy/devcluster/build

.PHONY: generate
generate: $(BUF) $(PROTOC_GEN_GO) ## Everything generated: the Go of proto/.
	@echo "generating proto/"
	@cd proto && PATH="$(PROTO_BIN):$$PATH" $(BUF) generate

.PHONY: clean
clean: ## Removes bin/ and test results; keeps the cache of tools and servers.
	@rm -rf bin
	@$(GO) clean -testcache

##@ Check

# What runs whole installations runs after the rest, which would disturb what it
# measures; deploy/e2e runs several at a time (CONTRIBUTING.md).
.PHONY: test
test: export HELM := $(HELM)
test: devcluster $(HELM) ## Every test, on a real API server and real NATS. PKG=./shared/lease narrows it.
ifeq ($(PKG),./...)
	@$(GO) test -p $(TEST_LANES) -timeout $(TEST_TIMEOUT) $(TEST_FLAGS) $$($(GO) list $(LONGEST) ./... | grep -v /deploy/)
	@$(GO) test -p 1 -timeout $(TEST_TIMEOUT) $(TEST_FLAGS) ./deploy/...
else
	@$(GO) test -p $(TEST_LANES) -timeout $(TEST_TIMEOUT) $(TEST_FLAGS) $(PKG)
endif

.PHONY: race
race: devcluster ## Rooms with goroutines again, under the race detector (needs a C compiler).
	@CGO_ENABLED=1 $(GO) test -race -short -p $(TEST_LANES) -timeout $(TEST_TIMEOUT) $(TEST_FLAGS) $(RACE_PKG)

.PHONY: bench
bench: ## Every benchmark once, to see that it runs. BENCHTIME=2s TEST_FLAGS=-count=10 measures.
	@$(GO) test -run '^$$' -bench '$(BENCH)' -benchtime $(BENCHTIME) -benchmem $(TEST_FLAGS) $(BENCH_PKG)

.PHONY: benchstat
benchstat: $(BENCHSTAT) ## Compares two outputs of bench: OLD=file NEW=file.
	@$(BENCHSTAT) $(OLD) $(NEW)

.PHONY: fuzz
# By count, and with a bound on making an interesting input small: a run by time
# can fail for no more than that its time was over.
fuzz: ## Every fuzz target with FUZZTIME inputs (or for a time: 10m).
	@{ grep -rE --include='*_test.go' '^func Fuzz\w+\(' ./shared ./services || true; } | sort \
	| sed -E 's|^(.*)/[^/]*:func (Fuzz[A-Za-z0-9_]+).*|\1 \2|' \
	| while read -r dir name; do \
		echo "fuzzing $$name in $$dir"; \
		$(GO) test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 100x "$$dir" </dev/null; \
	done

.PHONY: lint
lint: $(GOLANGCI_LINT) $(BUF) ## Style and walls of the Go, style of the wire, and what it broke since the last release.
	@GOLANGCI_LINT_CACHE=$(CACHE)/golangci-lint $(GOLANGCI_LINT) run --allow-parallel-runners
	@$(BUF) lint proto
	@if git cat-file -e '$(AGAINST):proto/buf.yaml' 2>/dev/null; then \
		echo "comparing the wire with $(AGAINST)"; \
		$(BUF) breaking proto --against "$$(git rev-parse --git-common-dir)#ref=$(AGAINST),subdir=proto"; \
	else \
		echo "no earlier proto/ to compare the wire with"; \
	fi

.PHONY: fix
fix: $(GOLANGCI_LINT) ## Formats, and mends what the linters can mend by themselves.
	@$(GOLANGCI_LINT) fmt
	@GOLANGCI_LINT_CACHE=$(CACHE)/golangci-lint $(GOLANGCI_LINT) run --fix

.PHONY: verify
verify: ## What is generated, formatted or tidied is as git has it.
	@before=$$($(GENERATED) | git hash-object --stdin-paths | cksum); $(MAKE) generate; \
	after=$$($(GENERATED) | git hash-object --stdin-paths | cksum); \
	if [ "$$before" != "$$after" ]; then \
		echo "make generate changed something: commit its result"; git diff --stat -- proto docs; exit 1; \
	fi
	@unformatted=$$(gofmt -l $(GO_ROOMS)); \
	if [ -n "$$unformatted" ]; then echo "not formatted (gofmt -w mends it):"; echo "$$unformatted"; exit 1; fi
	@$(GO) mod tidy -diff
	@if [ -n "$(CI)" ]; then git diff --exit-code; fi

GENERATED = find proto docs -type f | sort
GO_ROOMS  = $(wildcard proto shared services deploy)

# The database of known vulnerabilities is a web service. Where it cannot be
# reached the check says so and passes; a finding always fails.
.PHONY: vuln
vuln: $(GOVULNCHECK) ## Known vulnerabilities in code that is called.
	@rc=0; out=$$(timeout 300 $(GOVULNCHECK) ./... 2>&1) || rc=$$?; \
	if [ $$rc = 124 ] || grep -q 'fetching vulnerabilities' <<<"$$out"; then \
		echo "vulnerability database not reachable: not checked"; \
	else \
		echo "$$out"; exit $$rc; \
	fi

##@ Deploy

.PHONY: chart
chart: devcluster $(HELM) ## charts/millrace: lint, schema, golden files, rights, and a real API server that takes it all.
	@$(HELM) lint charts/millrace --strict --values deploy/chart/testdata/default.values.yaml
	@HELM=$(HELM) $(GO) test -count=1 $(TEST_FLAGS) ./deploy/chart ./services/millrace

# Static binaries are put into images FROM scratch: nothing is pulled. The server
# that tests need is built under the name of the public image.
IMAGE ?= millrace:dev
DOCKER ?= docker
COMPOSE ?= $(shell if $(DOCKER) compose version >/dev/null 2>&1; then echo $(DOCKER) compose; else echo docker-compose; fi)
NATS_VERSION = $(shell $(GO) list -m -f '{{.Version}}' github.com/nats-io/nats-server/v2)

.PHONY: images
images: build ## Images of millrace, and of NATS and the API server for development, with no registry.
	@rm -rf bin/image && mkdir -p bin/image/data && cp bin/millrace bin/image/
	@cp "$$(deploy/devcluster/build --only devcluster)/devcluster" bin/image/
	@CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false -ldflags '-s -w' -o bin/image/nats-server github.com/nats-io/nats-server/v2
	@$(DOCKER) build -q --target millrace --label org.opencontainers.image.version=$(VERSION) -t $(IMAGE) -f deploy/Dockerfile bin/image
	@$(DOCKER) build -q --target nats -t nats:$(patsubst v%,%,$(NATS_VERSION)) -f deploy/Dockerfile bin/image
	@$(DOCKER) build -q --target devcluster -t millrace-devcluster:dev -f deploy/Dockerfile bin/image

.PHONY: up
up: images ## docker-compose.yaml: an API server, NATS and every role twice, until all are healthy.
	@$(COMPOSE) up -d
	@deploy/tools/healthy '$(DOCKER)' $$($(COMPOSE) ps -q)

.PHONY: down
down: ## Stops what `up` started, and removes its volumes.
	@$(COMPOSE) down --volumes --remove-orphans

##@ See and measure

.PHONY: demo
demo: build ## The short story: services, pods, killed replicas, a silent node, evicted pods. DEMO_KEEP=1 leaves it running.
	@deploy/devcluster/build --only devcluster
	@$(GO) run ./deploy/demo

.PHONY: demo-standalone
demo-standalone: build ## The same with millrace in one process, killed and restarted on its folder.
	@deploy/devcluster/build --only devcluster
	@$(GO) run ./deploy/demo -standalone

# The long forms of suites that `test` runs shortly. SUITE_FLAGS go to the test.
# ROUNDS has no prefix of ours: the binaries refuse a MILLRACE_ they do not know.
# Nothing runs beside a test of these.
SUITE = $(GO) test -count=1 -v -parallel 1 -timeout $(SUITE_TIMEOUT)

.PHONY: faults
faults: build devcluster ## Nothing is lost while ROUNDS times everything is killed, cut, wiped.
	@ROUNDS=$(ROUNDS) $(SUITE) ./deploy/e2e -run '^TestFaults' $(SUITE_FLAGS)

.PHONY: correct
correct: build devcluster ## Slices tell the truth after 10 000 random changes at 1, 2, 4 and 8 replicas.
	@CHANGES=10000 REPLICAS=1,2,4,8 $(SUITE) ./deploy/e2e -run '^TestCorrect' $(SUITE_FLAGS)

.PHONY: takeover
takeover: build devcluster ## ROUNDS times a holder is killed or frozen: how long until its keys move on.
	@ROUNDS=$(ROUNDS) $(SUITE) ./deploy/e2e -run '^TestTakeover' $(SUITE_FLAGS)

.PHONY: node-exact
node-exact: build devcluster ## How long after its grace a silent node is tainted, beside upstream; 1 000 nodes too.
	@ROUNDS=3 $(SUITE) ./deploy/e2e -run '^TestNodeExact' $(SUITE_FLAGS)

# Five minutes a round.
.PHONY: node-faults
node-faults: SUITE_TIMEOUT = 180m
node-faults: build devcluster ## No node that beats is touched while ROUNDS times knowledge of it is made old.
	@ROUNDS=$(ROUNDS) $(SUITE) ./deploy/e2e -run '^TestNodeStaleKnowledge' $(SUITE_FLAGS)

.PHONY: node-rates
node-rates: build devcluster ## NoExecute taints at their rate at 1, 2, 4 and 8 replicas, whatever breaks.
	@REPLICAS=1,2,4,8 $(SUITE) ./deploy/e2e -run '^TestNodeRates' $(SUITE_FLAGS)

.PHONY: node-story
node-story: build devcluster ## Pods after a crash, all zones down, flips, events of nodes.
	@ROUNDS=10 SECONDS=120 $(SUITE) ./deploy/e2e -run '^TestNode(Pods|AllDown|Flips|Events)' $(SUITE_FLAGS)

.PHONY: evict-exact
evict-exact: build devcluster ## How long after its deadline a pod is deleted, beside upstream, and when a holder is killed.
	@ROUNDS=1 $(SUITE) ./deploy/e2e -run '^TestEvictExact' $(SUITE_FLAGS)

.PHONY: evict-right
evict-right: build devcluster ## The right pod and no other: made anew under its name, taints removed, bursts.
	@ROUNDS=200 $(SUITE) ./deploy/e2e -run '^TestEvictRight' $(SUITE_FLAGS)

.PHONY: evict-faults
evict-faults: build devcluster ## ROUNDS times writes are refused, NATS is away, nodes are held back, clocks disagree.
	@ROUNDS=$(ROUNDS) $(SUITE) ./deploy/e2e -run '^TestEvictFaults' $(SUITE_FLAGS)

.PHONY: evict-rates
evict-rates: build devcluster ## 10 000 pods on 100 dead nodes at a rate, at 1, 4 and 8 replicas that come and go.
	@REPLICAS=1,4,8 $(SUITE) ./deploy/e2e -run '^TestEvictRates' $(SUITE_FLAGS)

.PHONY: evict-gc
evict-gc: build devcluster ## Garbage of pods by every rule, 5 000 orphans; pause, and parts switched apart.
	@LONG=1 $(SUITE) ./deploy/e2e -run '^TestEvict(GC|Switches)' $(SUITE_FLAGS)

.PHONY: measure
measure: build devcluster ## All of docs/benchmarks.md: the next ones, memory, idle cost, the bus, fail-over.
	@LONG=1 $(SUITE) ./deploy/bench $(SUITE_FLAGS)

.PHONY: scale
scale: build devcluster ## Writes per second at 1, 2, 4 and 8 replicas.
	@LONG=1 $(SUITE) ./deploy/bench -run '^TestScale' $(SUITE_FLAGS)

.PHONY: latency
latency: build devcluster ## From pod Ready to slice, beside upstream.
	@LONG=1 $(SUITE) ./deploy/bench -run '^TestLatency' $(SUITE_FLAGS)

.PHONY: loads
loads: devcluster ## Long forms of rooms: heartbeats of 65 000 nodes, 5 000 pods of silent nodes, a rate that 8 processes share.
	@LONG=1 $(SUITE) -p 1 ./services/watcher ./services/nodelifecycle ./shared/rates -run '^Test(HeartbeatLoad|FiftyNodesOfAHundredPods|RealBound)$$' $(SUITE_FLAGS)

.PHONY: explore
explore: ## Every interleaving of the wire protocol, to the full depth.
	@$(SUITE) ./shared/protocol -run '^TestExplore' -explore.depth=long $(SUITE_FLAGS)

.PHONY: ci
ci: ## What CI runs: every check, each once, and a table of them.
	@FUZZTIME=$(CI_FUZZTIME) deploy/tools/steps lint verify vuln bench fuzz race test

##@ Tools, built on first use from deploy/tools/go.mod

.PHONY: tools
tools: $(GOLANGCI_LINT) $(BUF) $(GOVULNCHECK) $(BENCHSTAT) $(PROTOC_GEN_GO) $(HELM) ## All of them now, instead of on first use.

.PHONY: helm
helm: $(HELM) ## Says where the pinned helm is.
	@echo $(HELM)

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
$(HELM):          ; $(call build_tool,-C deploy/tools/helm -trimpath -ldflags '-s -w',helm.sh/helm/v4/cmd/helm)
