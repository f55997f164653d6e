module peer

go 1.19

require lisarelay v0.0.0

replace lisarelay => ../../../../shared/clients/go
