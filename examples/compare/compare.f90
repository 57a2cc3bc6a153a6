! Compares two histories: each entry that differs, and where.
!
! usage: compare A B
!
! Exit status: 0 the same, 1 different, 2 something could not be compared, or an error.
program compare
  use, intrinsic :: iso_fortran_env, only: error_unit, int64
  use twinrun
  implicit none
  type(twr_comparison_t) :: found
  type(twr_comparison_report_t) :: facts
  type(twr_field_report_t) :: field
  character(4096) :: a, b
  character(:), allocatable :: message
  integer :: stat
  integer(int64) :: i

  if (command_argument_count() /= 2) then
    write (error_unit, '(a)') "usage: compare A B"
    error stop 2
  end if
  call get_command_argument(1, a)
  call get_command_argument(2, b)
  call twr_compare(found, a, b, stat=stat, errmsg=message)
  if (stat /= twr_ok .and. stat /= twr_different .and. stat /= twr_incomparable) then
    write (error_unit, '(a)') message
    error stop 2
  end if

  call twr_comparison_facts(found, facts)
  do i = 1, facts%fields
    call twr_comparison_field(found, i, field)
    if (field%different == 0) cycle
    write (*, '(a, i0, a, i0, 3a, i0, a, *(1x, i0))') "step ", field%step, ", rank ", field%rank, ", ", field%field, ": ", &
        field%different, " elements differ, the first at", field%first_index
  end do
  do i = 1, facts%problems
    write (*, '(2a)') "not compared: ", twr_comparison_problem(found, i)
  end do
  write (*, '(a)') twr_comparison_verdict(found)
  call twr_comparison_destroy(found)
  if (stat == twr_different) error stop 1
  if (stat == twr_incomparable) error stop 2
end program
