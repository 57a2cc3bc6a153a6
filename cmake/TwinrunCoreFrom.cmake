# twinrun_core and twinrun as another build of the same sources left them in the folder TWINRUN_CORE_FROM: they know nothing of
# MPI, and a build for one more MPI needs a tenth of the time. Included by src/; targets are as there.
add_library(twinrun_core STATIC IMPORTED GLOBAL)
set_target_properties(twinrun_core PROPERTIES IMPORTED_LOCATION "${TWINRUN_CORE_FROM}/src/libtwinrun_core.a")
twinrun_core_usage(INTERFACE)
# Of an archive: what a target of this build would pass on by itself.
target_link_libraries(twinrun_core INTERFACE xxHash::xxhash ${CMAKE_DL_LIBS})
foreach(library IN ITEMS Liburing::liburing Zstd::zstd)
    if(TARGET ${library})
        target_link_libraries(twinrun_core INTERFACE ${library})
    endif()
endforeach()

add_library(twinrun SHARED IMPORTED GLOBAL)
set_target_properties(twinrun PROPERTIES IMPORTED_LOCATION "${TWINRUN_CORE_FROM}/bin/libtwinrun.so")
twinrun_library_usage(INTERFACE)
