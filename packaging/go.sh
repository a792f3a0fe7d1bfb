# The Go module as its users get it: with the header and, for each processor, the library as one
# object, which `go build` links by itself. The object has the C++ runtime in it and shows nothing
# but routecap's functions. Sourced by release.sh, after library.sh.
need go=golang-go ld=binutils x86_64-linux-gnu-ld=binutils-x86-64-linux-gnu aarch64-linux-gnu-ld=binutils-aarch64-linux-gnu
path=github.com/routecap/routecap/bindings/go
module=$work/go/module
rm -rf "$work/go" && mkdir -p "$module"
git ls-files -z bindings/go | grep -zvE '_test\.go$|/(internal|bench)/|\.sh$|/link\.go$' | (cd bindings/go && cut -z -d/ -f3- | xargs -0 cp --parents -t "$module")
cp packaging/go/released/link.go LICENSE "$module"
cp src/third_party/base64/LICENSE "$module/LICENSE.base64"
cp src/third_party/blake2/LICENSE "$module/LICENSE.blake2"
cp src/third_party/crc32c/LICENSE "$module/LICENSE.crc32c"
sh dev/single.sh include "$module/routecap.h"

# The archives of zig's C++ runtime, which it makes for each processor. What the compiler's runtime
# has, libgcc's is there for, and memcpy and the like are to be those of libc.
runtime() {
    echo 'int main() {}' > "$work/go/runtime.cc"
    ZIG_VERBOSE_LINK=1 "$zig" c++ -O2 -target "$1-linux-gnu.2.28" "$work/go/runtime.cc" -o "$work/go/runtime" 2>&1 | tr ' ' '\n' |
        grep -E '/lib(c\+\+|c\+\+abi|unwind)\.a$' | sort -u
}
declare -A names=([x86_64]=amd64 [aarch64]=arm64)
for processor in "${processors[@]}"; do
    object=$module/routecap_linux_${names[$processor]}.syso
    mapfile -t archives < <(runtime "$processor")
    [ ${#archives[@]} = 3 ] || { say "no C++ runtime for $processor"; exit 1; }
    mapfile -t objects < <(find "$work/$processor/CMakeFiles" -path '*/routecap*.dir/*' -name '*.o' | sort)
    "$processor-linux-gnu-ld" -r --force-group-allocation -o "$work/go/whole.o" "${objects[@]}" --start-group "${archives[@]}" --end-group
    "$processor-linux-gnu-objcopy" --strip-debug --wildcard --keep-global-symbol='routecap_*' "$work/go/whole.o" "$object"
done

# As a proxy has it: a folder of these files is one.
(cd packaging/go && go run . "$path" "v$version" "$module" "$work/go/proxy/$path/@v")
(cd "$work/go/proxy" && tar -czf "$dist/routecap-$version-go.tar.gz" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner .)
