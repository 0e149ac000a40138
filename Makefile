# SPDX-License-Identifier: BSD-3-Clause
# The commands of a checkout, on a fresh Debian machine too: what is missing is installed first. The build is CMake's; every
# target here is a few calls of it. `make help` lists them.
PREFIX  ?= /usr/local
SECONDS ?= 20
CORES   := $(shell nproc)

# $(call build,PRESET): configures silently; errors still show.
build = cmake --preset $(1) >/dev/null && cmake --build $(2)
# $(call dev,OPTION): the tests' build, by -O3 as the release. OPTION is for kernels of AVX-512 where this processor lacks it.
dev = $(call build,dev -DSTROBE_AVX512_OPTIONS=$(if $(shell grep -sw avx512f /proc/cpuinfo),,$(1)),build-dev)
# $(call tests,FOLDER,LABELS,CORES): runs tests and leaves their results for tools/test_totals.sh.
tests = ctest --test-dir $(1) -L '$(2)' -j $(or $(3),$(CORES)) --output-on-failure --output-junit results.xml

.PHONY: all
all: packages  ## build the library and the command into build/ (the default); CUDA=OFF leaves the GPU's kernels out
	@cmake --preset release $(if $(CUDA),-DSTROBE_CUDA=$(CUDA)) >/dev/null && cmake --build build

# What a GPU would need takes minutes to compile, and nothing here could show it.
.PHONY: demo
demo: CUDA ?= $(if $(wildcard /dev/nvidiactl /proc/driver/nvidia/version /dev/dxg),AUTO,OFF)
demo: all  ## exact attention on the queries, keys and values of a real transformer
	build/strobe run examples/data/minilm_qkv.safetensors
	@$(if $(filter OFF,$(CUDA)),echo "built without the GPU's kernels; make demo CUDA=ON builds them",:)

.PHONY: test
test: packages-test  ## the tests, quick and full: some 20 minutes on two cores
	@$(call dev,-O1)
	$(call tests,build-dev,quick|full,$(shell expr $(CORES) + 2)); status=$$?; tools/test_totals.sh build-dev/results.xml; exit $$status

.PHONY: quick
quick: packages-test  ## the quick tests alone: under a minute once built
	@$(call dev,-O1)
	$(call tests,build-dev,quick)

.PHONY: long
long: packages-long  ## the tests that take as long as they take
	@$(call dev)
	$(call tests,build-dev,long)

.PHONY: asan tsan clang
asan tsan clang: packages-test  ## the quick tests under sanitizers, or with the other compiler
	tests/builds/run.sh $@ . all

.PHONY: fuzz
fuzz: packages-test  ## each fuzz target for SECONDS=20
	@$(call build,fuzz,build-fuzz)
	STROBE_FUZZ_SECONDS=$(SECONDS) $(call tests,build-fuzz,fuzz)

.PHONY: bench
bench: packages-bench all  ## CPU kernels beside the peak of this machine, then beside OpenBLAS
	bench/run.sh

.PHONY: support
support: all  ## regenerate docs/support.md from the kernels' records, in a build with CUDA
	@build/strobe info -o csv | grep -q ',cuda,' || { echo "CUDA: not built"; exit 1; }
	build/strobe info --support -o md > build/support.md
	mv build/support.md docs/support.md

.PHONY: dist
dist: packages-test  ## archives, wheel, checksums and bill of materials of the last commit, into build-release/
	tools/release.py $(if $(CUDA),--cuda $(CUDA))

.PHONY: site
site: packages-test  ## docs/ and references of the interfaces as pages with a search, into build-site/site
	tools/site/build.py

.PHONY: install
install: all  ## install into PREFIX=/usr/local
	cmake --install build --prefix $(PREFIX)

.PHONY: format
format: packages-test  ## format every C file as check-style wants it
	git ls-files -z --cached --others --exclude-standard -- '*.c' '*.h' '*.cpp' '*.hpp' | xargs -0 clang-format -i

.PHONY: check-style
check-style: packages-test  ## include directions, sizes, formatting, left-overs
	tools/check_style.sh

.PHONY: clean
clean:  ## remove every build folder
	rm -rf build build-*/

.PHONY: help
help:  ## this list
	@sed -n 's/^\([a-z][a-z ]*\|check-style\):.*## /\1\t/p' $(firstword $(MAKEFILE_LIST)) | expand -t 18

.PHONY: packages packages-bench packages-long packages-test
packages:
	@tools/install_packages.sh build
packages-bench:
	@tools/install_packages.sh build bench
packages-long:
	@tools/install_packages.sh build test long
packages-test:
	@tools/install_packages.sh build test
