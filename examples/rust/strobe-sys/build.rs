// SPDX-License-Identifier: BSD-3-Clause
//! Finds libstrobe.so: in the folder that STROBE_LIB_DIR names, else where pkg-config says. A program finds it again when it
//! starts by its own means: an installed place, LD_LIBRARY_PATH, or a run path that the program's build script gives.
use std::{env, process};

fn folder() -> Result<String, String> {
    if let Ok(folder) = env::var("STROBE_LIB_DIR") {
        return std::fs::canonicalize(&folder)
            .map(|path| path.display().to_string())
            .map_err(|error| format!("STROBE_LIB_DIR is {folder}: {error}"));
    }
    let output = process::Command::new("pkg-config").args(["--variable=libdir", "strobe"]).output();
    match output {
        Ok(output) if output.status.success() => Ok(String::from_utf8_lossy(&output.stdout).trim().to_string()),
        _ => Err("pkg-config does not know strobe; `make install`, or STROBE_LIB_DIR with libstrobe.so's folder, is needed"
            .into()),
    }
}

fn main() {
    println!("cargo:rerun-if-env-changed=STROBE_LIB_DIR");
    println!("cargo:rerun-if-env-changed=PKG_CONFIG_PATH");
    match folder() {
        Ok(folder) => println!("cargo:rustc-link-search=native={folder}\ncargo:rustc-link-lib=dylib=strobe"),
        Err(sentence) => {
            eprintln!("strobe-sys: {sentence}");
            process::exit(1);
        }
    }
}
