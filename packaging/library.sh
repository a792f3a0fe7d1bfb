# Archives of the library, Debian packages, and the sources. Sourced by release.sh.
need cmake=cmake ninja=ninja-build c++=g++ dpkg-deb=dpkg file=file
install_nvcc

# packed PROCESSOR LIBDIR GENERATOR: the same objects, for another folder of libraries.
packed() {
    logged "configure-$1" cmake -S . -B "$work/$1" -G Ninja $(toolchain "$1") -DCMAKE_BUILD_TYPE=Release -DROUTECAP_CUDA=ON \
        -DCMAKE_INSTALL_PREFIX=/usr -DCMAKE_INSTALL_LIBDIR="$2"
    logged "build-$1" cmake --build "$work/$1" -j "$jobs"
    logged "$3-$1" cpack --config "$work/$1/CPackConfig.cmake" -G "$3" -B "$work/$1/cpack"
}
for processor in "${processors[@]}"; do
    packed "$processor" "lib/$processor-linux-gnu" DEB
    packed "$processor" lib TGZ
    mv "$work/$processor"/cpack/*.deb "$work/$processor"/cpack/*.tar.gz "$dist"
done
git archive --prefix="routecap-$version/" -o "$dist/routecap-$version-source.tar.gz" HEAD
