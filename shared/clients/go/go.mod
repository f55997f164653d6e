module lisarelay

go 1.19
