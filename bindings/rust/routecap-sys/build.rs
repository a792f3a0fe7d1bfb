//! Finds or builds the library. Nothing is generated here: the bindings are checked in.

use std::env;
use std::path::Path;

/// Every later version with the same major number has what this one has.
const VERSIONS: std::ops::Range<&str> = "1.0.0".."2.0.0";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    for variable in ["ROUTECAP_LIB_DIR", "ROUTECAP_INCLUDE_DIR", "ROUTECAP_STATIC", "DOCS_RS"] {
        println!("cargo:rerun-if-env-changed={variable}");
    }
    if env::var_os("DOCS_RS").is_some() {
        return; // documentation needs no library
    }
    if let Some(directory) = env::var_os("ROUTECAP_LIB_DIR") {
        link_directory(Path::new(&directory));
    } else if cfg!(feature = "vendored") {
        build_vendored();
    } else {
        find_by_pkg_config();
    }
}

fn find_by_pkg_config() {
    match pkg_config::Config::new().range_version(VERSIONS).statik(wants_static()).probe("routecap")
    {
        Ok(_) if wants_static() => println!("{CPP_RUNTIME}"),
        Ok(_) => {}
        Err(error) => panic!(
            "\nroutecap was not found: install it and set PKG_CONFIG_PATH to the directory of its routecap.pc, or ROUTECAP_LIB_DIR to \
             that of the library,\nor build it from the sources in this crate with the feature `vendored`.\n{error}\n"
        ),
    }
}

fn wants_static() -> bool {
    env::var_os("ROUTECAP_STATIC").is_some_and(|value| value != "0")
}

fn link_directory(directory: &Path) {
    println!("cargo:rustc-link-search=native={}", directory.display());
    if wants_static() {
        link_static();
    } else {
        println!("cargo:rustc-link-lib=dylib=routecap");
    }
    if let Some(include) = env::var_os("ROUTECAP_INCLUDE_DIR") {
        println!("cargo:include={}", Path::new(&include).display());
    }
}

/// What a static library leaves to its user, beside what Rust links anyway: threads and dlopen.
const CPP_RUNTIME: &str = "cargo:rustc-link-lib=dylib=stdc++";

fn link_static() {
    println!("cargo:rustc-link-lib=static=routecap");
    println!("{CPP_RUNTIME}");
}

#[cfg(feature = "vendored")]
fn build_vendored() {
    for part in ["CMakeLists.txt", "dev", "include", "kernels", "pkgconfig", "src"] {
        println!("cargo:rerun-if-changed=vendor/{part}");
    }
    println!("cargo:rerun-if-env-changed=CUDA_HOME");
    let installed = cmake::Config::new("vendor")
        .profile("Release")
        .define("BUILD_SHARED_LIBS", "OFF")
        .define("CMAKE_INSTALL_LIBDIR", "lib")
        .build();
    println!("cargo:rustc-link-search=native={}", installed.join("lib").display());
    println!("cargo:include={}", installed.join("include").display());
    link_static();
}

#[cfg(not(feature = "vendored"))]
fn build_vendored() {
    unreachable!("only with the feature `vendored`");
}
