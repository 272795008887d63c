# Each target installs what it needs from Debian's packages when run as root, and otherwise
# says which packages are missing (tools/need). Rust comes from rustup.

CARGO ?= cargo
# Where cargo builds; all other results go there too.
OUT := $(or $(CARGO_TARGET_DIR),target)
# The released program; what `make install` installs.
SEGUE ?= $(OUT)/release/segue
VM := $(OUT)/vm

# What a release builds: the program, and those that it or a container runtime starts.
PROGRAMS := -p segue-cli -p segue-fleet -p segue-cni

.DEFAULT_GOAL := help
.PHONY: help build install dist deb demo quick test test-full check figures trust bench bench-peers fuzz mutants miri loom soak clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(firstword $(MAKEFILE_LIST)) | expand -t 13
	@echo
	@echo 'make install PREFIX=/opt  where to install (/usr/local); DESTDIR is put in front'
	@echo 'make test ARGS=NAME       only the tests whose name holds NAME'
	@echo 'make figures ONLY=NAME    (or trust) only the measurement NAME, else those whose names hold it;'
	@echo '                          several: ONLY="published published-"'
	@echo 'make fuzz SECONDS=600     how long each target runs (60); FUZZ="parse gro" chooses targets'
	@echo 'make test-full MINUTES=20 begins no command later than that'
	@echo 'make soak MINUTES=120     how long all instances run under faults (10); then a quarter of it (at most 30) of calm'
	@echo '                          traffic, and about an hour of enumerations; ONLY=CASE chooses; SOAK=whole: hours more'
	@echo 'make mutants SEED=7 SHARD=2/8  another choice; the third of eight parts (SEED=1 SHARD=0/1)'
	@echo 'make bench RUNS=9         how often each case is measured (5)'

build: ## the release programs, target/release/segue and those that it starts
	@tools/need build
	$(CARGO) build --release --locked $(PROGRAMS)

PREFIX ?= /usr/local
# What writes manual and completions: another program than $(SEGUE) where that one is for another machine.
GENERATOR ?= $(SEGUE)
install: ## the programs with manual, completions, units and dissector below PREFIX
	@if [ '$(origin SEGUE)' = file ] && command -v $(CARGO) >/dev/null; then $(MAKE) --no-print-directory build; fi
	@[ -x '$(SEGUE)' ] || { echo 'make install: there is no $(SEGUE) yet; run make build first' >&2; exit 1; }
	install -D -m 755 '$(SEGUE)' '$(DESTDIR)$(PREFIX)/bin/segue'
	@for program in segue-fleet segue-cni; do \
		from="$$(dirname '$(SEGUE)')/$$program"; \
		[ -x "$$from" ] || [ '$(origin SEGUE)' = file ] || continue; \
		install -D -m 755 "$$from" "$(DESTDIR)$(PREFIX)/libexec/segue/$$program" || exit 1; \
	done
	tools/install-data '$(GENERATOR)' '$(DESTDIR)' '$(PREFIX)'

dist: ## static programs, Debian packages, SBOM and checksums for x86-64 and aarch64, in target/dist
	@tools/need dist
	tools/dist

deb: build ## a Debian package of the release program, in target/dist
	@tools/need deb
	tools/deb '$(SEGUE)'

demo: ## two hosts, a tunnel between them, and what its offloads are worth
	@tools/need demo
	$(CARGO) build --release --locked -p segue-cli
	$(SEGUE) lab
	$(SEGUE) lab --link veth --family 4

quick: ## format, lints of what changed, the engine's tests and all unit tests: two minutes
	@tools/need quick
	tools/quick

test: ## every kind of test, those against a real Linux kernel in a guest included
	@tools/need test
	lab/vm-build '$(VM)' || echo 'make test: no guest; the tests that need one are skipped' >&2
	tools/run-tests $(if $(ARGS),-- $(ARGS))

test-full: ## what is too long for every test: all sizes with the released program, emulated machines
	@tools/need test-full
	$(CARGO) build --release --locked $(PROGRAMS)
	lab/vm-build '$(VM)' || echo 'make test-full: no guest; the tests that need one are skipped' >&2
	tools/run-tests --full $(if $(MINUTES),--minutes $(MINUTES)) $(if $(ARGS),-- $(ARGS))

check: ## form: format, lints, docs, layers, style, commits, licences, duplicates, no_std, instructions, scripts
	@tools/need check
	$(CARGO) fmt --check
	$(CARGO) fmt --check --manifest-path fuzz/Cargo.toml
	$(CARGO) fmt --check --manifest-path bench/peers/Cargo.toml
	$(CARGO) fmt --check --manifest-path tools/bench-dpdk/Cargo.toml
	$(CARGO) fmt --check --manifest-path tools/instructions/Cargo.toml
	$(CARGO) fmt --check --manifest-path tools/loom/Cargo.toml
	$(CARGO) fmt --check --manifest-path tools/size/Cargo.toml
	$(CARGO) fmt --check --all --manifest-path integrations/Cargo.toml
	$(CARGO) fmt --check --manifest-path integrations/beside/Cargo.toml
	$(CARGO) fmt --check --manifest-path integrations/gotatun/Cargo.toml
	tools/commits --self-test
	tools/commits
	tools/layers --self-test
	tools/layers
	tools/style --self-test
	tools/style
	tools/named-tests --self-test
	tools/named-tests
	tools/old --self-test
	tools/unsafe --self-test
	tools/unsafe
	tools/mutants --self-test
	tools/fuzz-runs --self-test
	tools/figures --self-test
	tools/trust.d/03-floods --self-test >/dev/null
	tools/trust.d/04-errors --self-test >/dev/null
	tools/trust.d/05-linear --self-test >/dev/null
	tools/trust.d/06-coverage --check
	tools/trust.d/08-unsafe --self-test >/dev/null
	tools/judges --self-test
	tools/trust.d/09-soak --self-test >/dev/null
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	$(CARGO) clippy --manifest-path fuzz/Cargo.toml --target-dir '$(OUT)/fuzz' --locked --lib -- -D warnings
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --workspace --no-deps --locked --features segue-port/tokio
	tools/licences --self-test
	tools/sbom --self-test
	tools/ux --self-test
	tools/figures.d/health --self-test
	tools/figures.d/stat-watch --self-test
	tools/licences
	tools/advisories --self-test
	tools/advisories
	tools/duplicates
	tools/api --self-test
	tools/semver --self-test
	tools/api
	$(CARGO) test --quiet --locked -p segue-capi --target-dir '$(OUT)/capi' --test header --test c -- the_header_ the_library_exports_ structs_have_
	tools/package
	tools/no-std/run
	tools/instructions/run
	tools/run-tests --self-test
	shellcheck .ci/run crates/segue-capi/install contrib/debian/postinst contrib/debian/postrm contrib/debian/prerm contrib/debian/tests/tunnel lab/debian-root tools/cargo-tool tools/cross tools/miri tools/install-data tools/deb tools/dist tools/need tools/fuzz tools/soak tools/quick tools/static tools/figures tools/package tools/report-picture tools/no-std/run bench/peers/run
	shellcheck --severity error lab/vm-build lab/vm-run lab/capture-pair lab/capture-guest.sh

figures: ## what measures, each figure beside its aim, with the command
	@tools/need figures
	$(CARGO) build --release --locked $(PROGRAMS)
	SEGUE_BIN='$(abspath $(SEGUE))' tools/figures $(ONLY)

trust: ## what attacks and faults cost, each figure beside its aim, with the command
	@tools/need trust
	$(CARGO) build --release --locked $(PROGRAMS)
	SEGUE_SEED=$${SEGUE_SEED:-'$(SEED)'} SEGUE_BIN='$(abspath $(SEGUE))' tools/figures --trust $(ONLY)

SECONDS ?= 60
fuzz: ## each fuzz target for SECONDS, on the stable toolchain
	@tools/need fuzz
	tools/fuzz --seconds $(SECONDS) $(FUZZ)

SEED ?= 1
SHARD ?= 0/1
mutants: ## mutation tests of engine and NAT: 150 changes that SEED chooses, of which SHARD=I/N runs each Nth
	@tools/need mutants
	tools/mutants --seed='$(SEED)' --shard='$(SHARD)'

miri: ## the code with unsafe that Miri can interpret (a nightly toolchain)
	tools/miri

loom: ## interleavings of the threads that share boards, knobs and feeds (of feeds, those with two preemptions)
	@tools/need build
	$(CARGO) test --release --locked --manifest-path tools/loom/Cargo.toml --target-dir '$(OUT)/loom' -- models::

RUNS ?= 5
bench: ## the tables of docs/figures.md as JSON in target/bench, and the benchmarks of the engine
	@tools/need bench
	$(CARGO) build --release --locked -p segue-cli
	mkdir -p '$(OUT)/bench'
	for link in nic veth; do \
		echo "bench: $(OUT)/bench/lab-$$link.json" && \
		$(SEGUE) lab --link $$link --runs $(RUNS) -j > '$(OUT)/bench/'lab-$$link.json || exit 1; \
	done
	for bench in lro ack gso rco tunnel napi; do \
		echo "bench: $(OUT)/bench/$$bench.json" && \
		$(SEGUE) bench $$bench --runs $(RUNS) -j > '$(OUT)/bench/'$$bench.json || exit 1; \
	done
	$(CARGO) bench --locked -p segue-benches

ROUNDS ?= 21
bench-peers: ## the engine beside DPDK, tun-rs, wireguard-go, gVisor and others, which it brings; ROUNDS=21
	@tools/need bench-peers
	bench/peers/run '$(ROUNDS)'

soak: ## for MINUTES all instances under faults and floods, then calm traffic, then what is enumerated as a whole
	@tools/need soak
	$(CARGO) build --release --locked $(PROGRAMS)
	tools/soak --minutes $(or $(MINUTES),10) $(if $(ONLY),--only $(ONLY)) '$(SEGUE)'

clean: ## removes all that was built
	$(CARGO) clean
	rm -rf fuzz/artifacts
