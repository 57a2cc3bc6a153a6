# Runs the program with an empty folder.
file(REMOVE_RECURSE "${FOLDER}")
file(MAKE_DIRECTORY "${FOLDER}")
execute_process(COMMAND "${PROGRAM}" "${FOLDER}" COMMAND_ERROR_IS_FATAL ANY)
file(REMOVE_RECURSE "${FOLDER}")
