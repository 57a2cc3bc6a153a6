# The libraries without MPI as another build of the same sources left them in the folder TWINRUN_CORE_FROM: a build for one more MPI,
# or of the Python package, needs a tenth of the time. Included by src/; targets are as there.
add_library(twinrun_core STATIC IMPORTED GLOBAL)
set_target_properties(twinrun_core PROPERTIES IMPORTED_LOCATION "${TWINRUN_CORE_FROM}/src/core/libtwinrun_core.a")
twinrun_core_usage(twinrun_core INTERFACE)
# Of an archive: what a target of this build would pass on by itself.
target_link_libraries(twinrun_core INTERFACE xxHash::xxhash ${CMAKE_DL_LIBS})
foreach(library IN ITEMS Liburing::liburing Zstd::zstd)
    if(TARGET ${library})
        target_link_libraries(twinrun_core INTERFACE ${library})
    endif()
endforeach()

foreach(part IN ITEMS aggregate:twinrun_aggregate_core noise:twinrun_noise)
    string(REPLACE ":" ";" part "${part}")
    list(GET part 0 folder)
    list(GET part 1 library)
    add_library(${library} STATIC IMPORTED GLOBAL)
    set_target_properties(${library} PROPERTIES IMPORTED_LOCATION "${TWINRUN_CORE_FROM}/src/${folder}/lib${library}.a")
    target_include_directories(${library} INTERFACE "${PROJECT_SOURCE_DIR}/src")
    target_link_libraries(${library} INTERFACE twinrun_core)
endforeach()

add_library(twinrun SHARED IMPORTED GLOBAL)
set_target_properties(twinrun PROPERTIES IMPORTED_LOCATION "${TWINRUN_CORE_FROM}/bin/libtwinrun.so")
twinrun_library_usage(INTERFACE)
