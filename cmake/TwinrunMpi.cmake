# twinrun::mpi (include/twinrun/mpi.h), twinrun::veloc (VELOC's interface) and twinrun::aggregate (include/twinrun/aggregate.h),
# where there is an MPI. Included by the root after src/. The core knows nothing of MPI.
set(TWINRUN_MPI AUTO CACHE STRING "The libraries for MPI and for VELOC's interface: AUTO (if there is an MPI), ON (there must be), OFF")
set_property(CACHE TWINRUN_MPI PROPERTY STRINGS AUTO ON OFF)

set(TWINRUN_HAVE_MPI OFF)
if(TWINRUN_BUILD_LIBRARY AND NOT TWINRUN_MPI STREQUAL "OFF")
    # The C binding is all that is used, also from C++; FindMPI looks for it only where C is enabled.
    twinrun_check_language(C)
    if(CMAKE_C_COMPILER)
        enable_language(C)
        # What the user has comes first: MPI_HOME, MPI_C_COMPILER, mpicc on the PATH, a compiler that knows MPI by itself. Else the
        # one of the tests' environment, from PyPI.
        find_package(MPI 3.0 QUIET COMPONENTS C)
        set(own_mpi "${PROJECT_SOURCE_DIR}/.venv/bin")
        if(NOT MPI_C_FOUND AND EXISTS "${own_mpi}/mpicc")
            set(MPI_C_COMPILER "${own_mpi}/mpicc" CACHE FILEPATH "MPI compiler for C" FORCE)
            set(MPIEXEC_EXECUTABLE "${own_mpi}/mpiexec" CACHE FILEPATH "Starts programs of several processes" FORCE)
            find_package(MPI 3.0 QUIET COMPONENTS C)
        endif()
        set(TWINRUN_HAVE_MPI ${MPI_C_FOUND})
    endif()
    if(TWINRUN_MPI STREQUAL "ON" AND NOT TWINRUN_HAVE_MPI)
        message(FATAL_ERROR "TWINRUN_MPI is ON and no MPI 3.0 or newer is found: put mpicc on the PATH, or set MPI_C_COMPILER to it")
    endif()
endif()

if(TWINRUN_HAVE_MPI)
    message(STATUS "MPI: ${MPI_C_COMPILER} (standard ${MPI_C_VERSION})")
    add_subdirectory("${PROJECT_SOURCE_DIR}/src/mpi" src/mpi)
    add_subdirectory("${PROJECT_SOURCE_DIR}/src/veloc" src/veloc)
    add_subdirectory("${PROJECT_SOURCE_DIR}/src/aggregate/mpi" src/aggregate/mpi)
    add_subdirectory("${PROJECT_SOURCE_DIR}/src/aggregate/mpiio" src/aggregate/mpiio)
    add_subdirectory("${PROJECT_SOURCE_DIR}/src/aggregate/hdf5" src/aggregate/hdf5)
    # The driver needs no HDF5 to be built: HDF5 loads it.
    set(TWINRUN_HDF5 "" CACHE PATH "A parallel HDF5 1.14 or newer, for the tests of the HDF5 driver (tools/build_hdf5.sh)")
    set(TWINRUN_HDF5_PYTHON "" CACHE FILEPATH "A Python with h5py for that HDF5 and mpi4py, for the tests of the HDF5 driver")
endif()
