# Copyright The twinrun authors
#
# SPDX-License-Identifier: Apache-2.0

from spack.package import *


class Twinrun(CMakePackage, CudaPackage):
    """twinrun captures the states of a program, and says whether two runs agree within an error
    bound: at which step, on which rank, in which variable and at which index they part first.

    The libraries for C, C++, Fortran and MPI. The Python package is PyPI's twinrun."""

    # OWNER stands for the project's public place, which is not decided.
    homepage = "https://github.com/OWNER/twinrun"
    git = "https://github.com/OWNER/twinrun.git"

    license("Apache-2.0", checked_by="twinrun")

    version("main", branch="main")

    variant("fortran", default=True, description="Build the Fortran modules")
    variant("mpi", default=True, description="Build the libraries for MPI, and VELOC's interface")
    variant("uring", default=True, description="Read through io_uring")
    variant("zstd", default=True, description="Pack records by Zstandard")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("fortran", type="build", when="+fortran")

    depends_on("cmake@3.25:", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("xxhash@0.8:")
    depends_on("nlohmann-json@3.9:")
    depends_on("zstd", when="+zstd")
    depends_on("liburing", when="+uring")
    depends_on("mpi@3:", when="+mpi")
    depends_on("cuda@12:", when="+cuda")

    conflicts("platform=darwin", msg="twinrun needs Linux")
    conflicts("platform=windows", msg="twinrun needs Linux")

    def cmake_args(self):
        args = [
            self.define("TWINRUN_BUILD_LIBRARY", True),
            self.define("TWINRUN_BUILD_TESTS", False),
            self.define("TWINRUN_BUILD_FUZZ", False),
            self.define("TWINRUN_BUILD_APPS", False),
            self.define_from_variant("TWINRUN_FORTRAN", "fortran"),
            self.define_from_variant("TWINRUN_MPI", "mpi"),
            self.define_from_variant("TWINRUN_URING", "uring"),
            self.define_from_variant("TWINRUN_ZSTD", "zstd"),
            self.define_from_variant("TWINRUN_CUDA", "cuda"),
        ]
        if self.spec.satisfies("+cuda"):  # without it there is no variant cuda_arch
            archs = self.spec.variants["cuda_arch"].value
            if "none" not in archs:
                args.append(self.define("TWINRUN_CUDA_ARCHITECTURES", ";".join(archs)))
        return args
