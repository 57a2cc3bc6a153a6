! twinrun, where the ranks of a run are the processes of an MPI communicator. Everything else is in the module twinrun.
!
!     use mpi
!     use twinrun
!     use twinrun_mpi
!     call twr_open_mpi(run, "runs/a", MPI_COMM_WORLD, settings)
!
! With mpi_f08: MPI_COMM_WORLD%MPI_VAL. Close the run before MPI_Finalize.
module twinrun_mpi
  use, intrinsic :: iso_c_binding, only: c_char, c_int, c_null_char, c_ptr
  use, intrinsic :: iso_fortran_env, only: error_unit
  use twinrun, only: twr_drop_settings, twr_error_message, twr_make_settings, twr_run_t, twr_settings_t
  implicit none
  private
  public :: twr_open_mpi

  interface
    ! include/twinrun/mpi.h
    function c_open_mpi(run, path, settings, comm) bind(c, name="twr_open_mpi_f")
      import :: c_char, c_int, c_ptr
      type(c_ptr), intent(out) :: run
      character(kind=c_char), intent(in) :: path(*)
      type(c_ptr), value :: settings
      integer(c_int), value :: comm
      integer(c_int) :: c_open_mpi
    end function
  end interface

contains

  ! [collective]
  subroutine twr_open_mpi(run, path, comm, settings, stat, errmsg)
    type(twr_run_t), intent(out) :: run
    character(*), intent(in) :: path
    integer, intent(in) :: comm
    type(twr_settings_t), intent(in), optional :: settings
    integer, intent(out), optional :: stat
    character(:), allocatable, intent(inout), optional :: errmsg
    type(c_ptr) :: made
    integer(c_int) :: status
    status = twr_make_settings(settings, made)
    if (status == 0) status = c_open_mpi(run%handle, trim(path) // c_null_char, made, int(comm, c_int))
    call twr_drop_settings(made)
    if (status /= 0 .and. present(errmsg)) errmsg = twr_error_message()
    if (present(stat)) then
      stat = int(status)
    else if (status /= 0) then
      write (error_unit, '(a)') "twinrun: " // twr_error_message()
      error stop 1
    end if
  end subroutine

end module
