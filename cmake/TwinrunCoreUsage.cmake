# What whoever links the core gets of it, as INTERFACE or PUBLIC: of the core that is built here, and of one that another build left.
function(twinrun_core_usage visibility)
    add_library(twinrun::core ALIAS twinrun_core)
    target_include_directories(twinrun_core ${visibility} "${PROJECT_SOURCE_DIR}/src")
    target_compile_definitions(twinrun_core ${visibility} TWINRUN_VERSION="${PROJECT_VERSION}")
    target_link_libraries(twinrun_core ${visibility} Threads::Threads)
    if(TWINRUN_X86)
        target_compile_definitions(twinrun_core ${visibility} TWINRUN_X86=1)
    endif()
    if(TARGET Liburing::liburing)
        target_compile_definitions(twinrun_core ${visibility} TWINRUN_HAVE_URING=1)
    endif()
endfunction()

# Of libtwinrun.so.
function(twinrun_library_usage visibility)
    add_library(twinrun::twinrun ALIAS twinrun)
    target_include_directories(twinrun ${visibility}
        "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>" "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
endfunction()
